"""Strips of pictures: which of the others is the same as the first, or which one has no twin? Tasks
on which content decides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.data._set import Images
from attnscope.validation import check_positive, described

LENGTH = 4
"""Pictures in a strip; the label says which of the last three it is."""
SAME = ("picture", "class")
CLASSES = ("second", "third", "fourth")
PAIRS = 2
"""Twins in a strip in which one picture has none."""
STRIPS = {"train": 8000, "test": 1000}
"""How many strips are made of the pictures of a split."""
AT_ONCE = 2**22
"""Pairs of a strip and a picture that are looked at together."""
MOST = 2**29
"""Numbers that the pixels of all strips may be; 2 GB."""


def strips(pictures: Images, count: int, same: str = "picture", seed: int = 0) -> Images:
    """`count` strips of four pictures side by side, made of `pictures` and of nothing else, so that
    strips of two splits share no picture.

    Args:
        pictures: of one size; with same="class", two of each class that is drawn.
        count: how many strips.
        same: "picture": one of the last three is the very same picture as the first, the other two
            are any others; "class": one is another picture of its class, the other two are of other
            classes. Which one it is, is the label: all three are equally likely.
        seed: of the draw.

    Returns:
        Images (count, channels, height, 4 x width).
    """
    check_positive("count", count)
    if same not in SAME:
        raise ValueError(f"same must be one of {', '.join(SAME)}, got {described(same)}.")
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(len(pictures), (count,), generator=generator)
    labels = torch.randint(LENGTH - 1, (count,), generator=generator)
    by_picture = same == "picture"

    def itself(some: slice) -> Bool[Tensor, "some pictures"]:
        return torch.arange(len(pictures)) == first[some, None]

    def alike(some: slice) -> Bool[Tensor, "some pictures"]:
        """Of one class, or by picture the very same."""
        return itself(some) if by_picture else pictures.labels == pictures.labels[first[some], None]

    def answers(some: slice) -> Bool[Tensor, "some pictures"]:
        return itself(some) if by_picture else alike(some) & ~itself(some)

    right = _drawn(answers, len(pictures), count, 1, generator)
    wrong = _drawn(lambda some: ~alike(some), len(pictures), count, LENGTH - 2, generator)
    chosen = torch.cat([first[:, None], right, wrong], dim=1)
    rows = torch.arange(count)  # the right one changes places with what stands where it belongs
    chosen[rows, 1], chosen[rows, 1 + labels] = chosen[rows, 1 + labels], right[:, 0]
    return Images(
        _side_by_side(pictures, chosen), labels, CLASSES, f"strips of {pictures.name}, same {same}"
    )


def odd_ones(pictures: Images, count: int, seed: int = 0) -> Images:
    """`count` strips of five pictures: two pictures twice and one once, in any order. The label
    says which one has no twin, so that every picture must be compared with every other.

    Args:
        pictures: of one size, three or more.
        count: how many strips.
        seed: of the draw.

    Returns:
        Images (count, channels, height, 5 x width).
    """
    check_positive("count", count)
    generator = torch.Generator().manual_seed(seed)

    def anything(some: slice) -> Bool[Tensor, "some pictures"]:
        return torch.ones(some.stop - some.start, len(pictures), dtype=torch.bool)

    drawn = _drawn(anything, len(pictures), count, PAIRS + 1, generator)
    chosen = torch.cat([drawn, drawn[:, 1:]], dim=1)
    order = torch.rand(chosen.shape, generator=generator).argsort(1)
    labels = (order == 0).to(torch.int64).argmax(1)
    side_by_side = _side_by_side(pictures, chosen.gather(1, order))
    classes = ("first", *CLASSES, "fifth")
    return Images(side_by_side, labels, classes, f"strips of {pictures.name}, the odd one")


def _side_by_side(
    pictures: Images, chosen: Int[Tensor, "strips length"]
) -> Float[Tensor, "strips channels height width"]:
    """The strips, if the machine can be asked to hold so many numbers."""
    numbers = chosen.numel() * pictures.pixels[0].numel()
    if numbers > MOST:
        raise ValueError(
            f"{len(chosen)} strips of {chosen.shape[1]} pictures of"
            f" {' x '.join(map(str, pictures.pixels.shape[1:]))} are {numbers:.2g} numbers, more"
            f" than the {MOST:.2g} that are made: use smaller pictures."
        )
    return torch.cat(pictures.pixels[chosen].unbind(1), dim=-1)


def _drawn(
    allowed: Callable[[slice], Bool[Tensor, "some pictures"]],
    pictures: int,
    strips: int,
    count: int,
    generator: torch.Generator,
) -> Int[Tensor, "strips {count}"]:
    """So many different pictures for each strip, of those that are allowed for it; some strips at a
    time, since a large set has many pairs.
    """
    pieces = []
    step = max(1, AT_ONCE // pictures)
    for start in range(0, strips, step):
        mask = allowed(slice(start, min(start + step, strips)))
        if int(mask.sum(1).min()) < count:
            raise ValueError(
                f"a strip needs {count} different pictures of a kind, and two of every class for"
                f" another of the same class; there are only {pictures} pictures: give more."
            )
        draw = torch.rand(mask.shape, generator=generator).masked_fill(~mask, -1.0)
        pieces.append(draw.topk(count, dim=1).indices)
    return torch.cat(pieces)
