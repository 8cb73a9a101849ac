"""Strips: exactly one of the last three pictures answers the first, exactly one of five has no
twin, and splits share no picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.data import Images, images
from attnscope.data import strips as module
from attnscope.data.strips import odd_ones, strips


def pictures(classes: int = 3, each: int = 3) -> Images:
    """Every picture is bright in a place of its own, so that it can be told in a strip."""
    count = classes * each
    pixels = torch.eye(count).reshape(count, 1, 1, count)
    labels = torch.arange(count) % classes
    return Images(pixels, labels, tuple(map(str, range(classes))), "pictures")


def numbers(made: Images, count: int = 9) -> torch.Tensor:
    """Which pictures stand in each strip."""
    return made.pixels.reshape(len(made), 4, count).argmax(-1)


def test_the_label_is_the_place_of_the_very_same_picture() -> None:
    made = strips(pictures(), 300)
    shown = numbers(made)
    same = shown[:, 1:] == shown[:, :1]
    assert made.pixels.shape == (300, 1, 1, 36)
    assert torch.equal(same.sum(1), torch.ones(300, dtype=torch.int64))
    assert torch.equal(same.int().argmax(1), made.labels)
    assert all(len(set(row.tolist())) == 3 for row in shown), "the two others differ"
    assert made.labels.bincount(minlength=3).min() > 60


def test_the_label_is_the_place_of_another_picture_of_the_class() -> None:
    source = pictures()
    made = strips(source, 300, "class")
    shown = numbers(made)
    alike = source.labels[shown[:, 1:]] == source.labels[shown[:, :1]]
    assert torch.equal(alike.sum(1), torch.ones(300, dtype=torch.int64))
    assert torch.equal(alike.int().argmax(1), made.labels)
    assert not (shown[:, 1:] == shown[:, :1]).any()


def test_the_label_is_the_place_of_the_picture_without_a_twin() -> None:
    made = odd_ones(pictures(), 500)
    shown = made.pixels.reshape(500, 5, 9).argmax(-1)
    copies = (shown[:, :, None] == shown[:, None]).sum(-1)
    assert torch.equal((copies == 1).sum(1), torch.ones(500, dtype=torch.int64))
    assert torch.equal((copies == 2).sum(1), torch.full((500,), 4))
    assert torch.equal((copies == 1).int().argmax(1), made.labels)
    assert made.labels.bincount(minlength=5).min() > 60
    with pytest.raises(ValueError, match="only 2 pictures"):
        odd_ones(pictures(1, 2), 5)


@pytest.mark.parametrize("made_of", [strips, odd_ones])
def test_a_seed_decides_the_strips(made_of: Callable[..., Images]) -> None:
    one, same, other = (made_of(pictures(), 20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.pixels, same.pixels)
    assert not torch.equal(one.pixels, other.pixels)


def test_strips_of_digits_are_split_by_the_original_picture() -> None:
    for name, length in (("strips", 4), ("strips-class", 4), ("strips-odd", 5)):
        test, digits = images(name, "test"), images("digits", "test")
        assert test.name == name
        assert test.pixels.shape == (1000, 1, 8, 8 * length)
        tokens = torch.cat(test.pixels.split(8, dim=-1)).flatten(1)
        assert torch.cdist(tokens, digits.pixels.flatten(1)).amin(1).max() == 0


@pytest.fixture
def squares(tmp_path: Path) -> str:
    """60 coloured pictures of three classes; red is the number of the picture, green its class."""
    made = np.zeros((60, 2, 3, 3), dtype=np.uint8)
    made[..., 0] = np.arange(60)[:, None, None]
    made[..., 1] = made[..., 0] % 3
    np.savez(tmp_path / "squares.npz", images=made, labels=np.arange(60) % 3)
    return str(tmp_path / "squares.npz")


def test_strips_of_any_set_of_pictures(squares: str) -> None:
    kept = {
        split: set((images(squares, split).pixels[:, 0, 0, 0] * 255).round().int().tolist())
        for split in ("train", "test")
    }
    for split, count in (("train", 8000), ("test", 1000)):
        made = images(f"strips-class:{squares}", split)
        assert made.pixels.shape == (count, 3, 2, 12)
        assert made.name == "strips-class:squares"
        red, green = (made.pixels[:, :2, 0, ::3] * 255).round().int().unbind(1)
        assert set(red.flatten().tolist()) <= kept[split]
        assert torch.equal((green[:, 1:] == green[:, :1]).int().argmax(1), made.labels)
        assert not (red[:, 1:] == red[:, :1]).any()
    red = (images(f"strips:{squares}").pixels[:, 0, 0, ::3] * 255).round().int()
    assert torch.equal(
        (red[:, 1:] == red[:, :1]).int().argmax(1), images(f"strips:{squares}").labels
    )
    assert images(f"strips-odd:{squares}").pixels.shape == (1000, 3, 2, 15)


def test_strips_of_digits_are_the_strips_without_a_colon() -> None:
    plain, named = images("strips-class", "test"), images("strips-class:digits", "test")
    assert torch.equal(plain.pixels, named.pixels)
    assert torch.equal(plain.labels, named.labels)


@pytest.mark.parametrize("source", ["strips:", "strips-odd: ", "strips:strips", "strips:strips:a"])
def test_strips_of_nothing_and_of_strips_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"comes a set of pictures, such as strips(-odd)?:svhn"):
        images(source)


def test_strips_of_what_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no data set 'nowhere\.npz'"):
        images("strips:nowhere.npz")


def test_strips_of_a_large_set_are_drawn_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    makers = [lambda: strips(pictures(), 50), lambda: strips(pictures(), 50, "class")]
    makers.append(lambda: odd_ones(pictures(), 50))
    whole = [make() for make in makers]
    monkeypatch.setattr(module, "AT_ONCE", 70)
    for make, one in zip(makers, whole, strict=True):
        assert torch.equal(make().pixels, one.pixels)
    monkeypatch.setattr(module, "MOST", 50 * 4 * 9)
    assert len(strips(pictures(), 50)) == 50
    for make in (lambda: strips(pictures(), 51), makers[-1]):
        with pytest.raises(ValueError, match="use smaller pictures"):
            make()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"same": "colour"}, "picture, class"),
        ({"count": 0}, "count"),
        ({"pictures": pictures(1, 2), "same": "picture"}, "only 2 pictures"),
        ({"pictures": pictures(3, 1), "same": "class"}, "only 3 pictures"),
    ],
)
def test_strips_that_cannot_be_made_are_refused(
    parts: dict[str, object], says: str, unchecked: None
) -> None:
    with pytest.raises(ValueError, match=says):
        strips(**{"pictures": pictures(), "count": 5, **parts})  # type: ignore[arg-type]
