"""Images from each kind of file in its official format, and what is said when a file is damaged,
altered or not there.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from hashlib import md5
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnscope.data import Images, _cifar, _svhn, images
from attnscope.data._set import part

RNG = np.random.default_rng(0)


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python2_batch(pixels: np.ndarray, labels: list[int], column_major: bool = False) -> bytes:
    """A batch as Python 2's cPickle wrote it, opcode by opcode: `str` everywhere, numpy under its
    old name, protocol 2.
    """
    raw = pixels.tobytes(order="F" if column_major else "C")
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    )
    dtype = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"".join(b"J" + struct.pack("<i", size) for size in pixels.shape) + b"\x86"
    array += (
        b"(K\x01"
        + shape
        + dtype
        + (b"\x88" if column_major else b"\x89")
        + b"T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    named = b"](" + b"".join(short(b"leptodactylus_%d.png" % k) for k in range(len(labels))) + b"e"
    entries = (
        short(b"data")
        + array
        + short(b"labels")
        + listed
        + short(b"batch_label")
        + short(b"testing batch 1 of 1")
    )
    return b"\x80\x02}(" + entries + short(b"filenames") + named + b"u."


def batches(count: int = 3) -> dict[str, tuple[np.ndarray, list[int]]]:
    names = [*_cifar.BATCHES["train"], "test_batch"]
    return {
        name: (
            RNG.integers(0, 256, (count, 3072), dtype=np.uint8),
            RNG.integers(0, 10, count).tolist(),
        )
        for name in names
    }


def packed(files: dict[str, bytes], inside: str = "cifar-10-batches-py/") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(inside + name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(packed({name: python2_batch(*content) for name, content in batches().items()}))
    return path


@pytest.mark.parametrize("column_major", [False, True])
def test_the_reader_of_pickles_agrees_with_pythons_own(tmp_path: Path, column_major: bool) -> None:
    content = {name: python2_batch(*batch, column_major) for name, batch in batches().items()}
    (tmp_path / "a.tar.gz").write_bytes(packed(content))
    truth = [pickle.loads(content[name], encoding="bytes") for name in _cifar.BATCHES["train"]]
    got = images(tmp_path / "a.tar.gz", "train")
    assert torch.equal(
        (got.pixels * 255).round().to(torch.uint8).flatten(1),
        torch.from_numpy(np.concatenate([b[b"data"] for b in truth])),
    )
    assert got.labels.tolist() == [label for batch in truth for label in batch[b"labels"]]
    assert got.classes[6] == "frog"


def test_a_pixel_of_cifar_is_where_it_belongs(tmp_path: Path) -> None:
    pixels = np.zeros((1, 3072), dtype=np.uint8)
    pixels[0, 1024 + 32 * 5 + 7] = 51  # green, row 5, column 7
    (tmp_path / "a.tgz").write_bytes(packed({"test_batch": python2_batch(pixels, [9])}))
    got = images(tmp_path / "a.tgz", "test")
    assert float(got.pixels[0, 1, 5, 7]) == pytest.approx(0.2)
    assert float(got.pixels.sum()) == pytest.approx(0.2)


def test_cifar_from_folders(tmp_path: Path, cifar: Path) -> None:
    whole = images(cifar, "all")
    assert len(whole) == 18
    assert torch.equal(images(cifar.parent, "test").pixels, whole.pixels[15:])
    unpacked = tmp_path / "elsewhere" / "cifar-10-batches-py"
    unpacked.mkdir(parents=True)
    with tarfile.open(cifar) as archive:
        for entry in archive:
            (unpacked / Path(entry.name).name).write_bytes(archive.extractfile(entry).read())  # type: ignore[union-attr]
    for place in (unpacked, unpacked.parent):
        assert torch.equal(images(place, "train").pixels, whole.pixels[:15])
    (unpacked / "data_batch_4").unlink()
    with pytest.raises(ValueError, match="no file data_batch_4"):
        images(unpacked, "train")


def test_batches_pickled_by_a_newer_numpy(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (2, 3072), dtype=np.uint8)
    (tmp_path / "test_batch").write_bytes(
        pickle.dumps({b"data": pixels, b"labels": [1, 2]}, protocol=4)
    )
    assert torch.equal(
        (images(tmp_path).pixels * 255).round().flatten(1), torch.from_numpy(pixels).float()
    )


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    for function, arguments in (
        (exec, (f"open({str(mark)!r}, 'w')",)),
        (mark.touch, ()),
        (np.save, (str(mark), 1)),
        (getattr, ("", "upper")),
    ):
        content = pickle.dumps(
            {"data": Evil(function, *arguments), "labels": []}, protocol=protocol
        )
        (tmp_path / "a.tar.gz").write_bytes(packed({"test_batch": content}))
        with pytest.raises(ValueError, match=r"asks for \S+, which no data set needs"):
            images(tmp_path / "a.tar.gz")
        assert not mark.exists()
        assert not mark.with_suffix(".npy").exists()


def test_a_call_without_a_name_is_refused_too(tmp_path: Path) -> None:
    extension = b"\x80\x02\x82\x01."  # EXT1: a name from Python's registry
    inner = b"\x80\x02cnumpy\ndtype\n(U\x02u1ti(c__builtin__\neval\nU\x031+1tR."
    for content in (
        extension,
        inner,
        b"\x80\x02cnumpy\nndarray.tofile\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93.",
    ):
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(ValueError, match="not a CIFAR-10 batch"):
            images(tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, "1"]},
        {b"data": np.zeros((0, 3072), np.uint8), b"labels": []},
        {b"labels": [0]},
        [1, 2, 3],
    ],
)
def test_a_batch_of_another_kind(tmp_path: Path, batch: object) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(ValueError, match="not a CIFAR-10 batch"):
        images(tmp_path)


def test_an_empty_name_is_a_wrong_value() -> None:
    """The command line says errors of values in a sentence; a string is of the right type."""
    for name in ("", " "):
        with pytest.raises(ValueError, match="got an empty name"):
            images(name)


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(python2_batch(np.zeros((2, 3072), np.uint8), [3, 10]))
    with pytest.raises(ValueError, match=r"labels must lie in 0 to 9, got values from 3 to 10"):
        images(tmp_path)


def test_an_archive_cut_or_altered_anywhere(cifar: Path) -> None:
    whole = cifar.read_bytes()
    for keep in (0, 5, 20, len(whole) // 3, len(whole) - 9, len(whole) - 4):
        cifar.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"truncated or damaged|no file test_batch"):
            images(cifar)
    for place in (0, len(whole) // 2, len(whole) - 6):
        altered = bytearray(whole)
        altered[place] ^= 0x55
        cifar.write_bytes(altered)
        with pytest.raises(ValueError, match="truncated or damaged"):
            images(cifar)


def test_names_in_an_archive_write_nothing_anywhere(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er"
    place.mkdir(parents=True)
    content = python2_batch(np.zeros((1, 3072), np.uint8), [1])
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, target in (
            ("../../evil", None),
            ("/tmp/attnscope-evil", None),
            ("link", "../.."),
            ("test_batch", None),
        ):
            entry = tarfile.TarInfo(name)
            if target:
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    (place / "a.tar.gz").write_bytes(made.getvalue())
    assert len(images(place / "a.tar.gz")) == 1
    assert {path.name for path in tmp_path.rglob("*")} == {"deep", "er", "a.tar.gz"}


def test_an_archive_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cifar, "LARGEST", 10_000)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(20_000)))
    with pytest.raises(ValueError, match="unpacks to more than 10000"):
        images(tmp_path / "a.tar.gz")


def svhn(folder: Path, file: str, labels: list[int]) -> np.ndarray:
    pixels = RNG.integers(0, 256, (32, 32, 3, len(labels)), dtype=np.uint8)
    scipy.io.savemat(
        folder / file,
        {"X": pixels, "y": np.array(labels, dtype=np.uint8)[:, None]},
        do_compression=True,
    )
    return pixels


def test_svhn_has_zeros_and_its_axes_in_order(tmp_path: Path) -> None:
    train, test = (
        svhn(tmp_path, "train_32x32.mat", [1, 10, 9, 2]),
        svhn(tmp_path, "test_32x32.mat", [10, 5]),
    )
    got = images(tmp_path, "all")
    assert got.labels.tolist() == [1, 0, 9, 2, 0, 5]
    assert got.pixels.shape == (6, 3, 32, 32)
    assert float(got.pixels[1, 2, 3, 4]) == pytest.approx(train[3, 4, 2, 1] / 255)
    assert float(images(tmp_path / "test_32x32.mat").pixels[1, 0, 30, 4]) == pytest.approx(
        test[30, 4, 0, 1] / 255
    )
    (tmp_path / "train_32x32.mat").unlink()
    with pytest.raises(
        ValueError,
        match=r"needs train_32x32.mat, which is not in .*e26dedcc434d2e4c54c9b2d4a06d8373",
    ):
        images(tmp_path, "train")


def test_a_damaged_mat_file(tmp_path: Path) -> None:
    svhn(tmp_path, "test_32x32.mat", [1, 2])
    file = tmp_path / "test_32x32.mat"
    whole = file.read_bytes()
    for content in (
        b"",
        whole[:100],
        whole[: len(whole) // 2],
        whole[:200] + bytes([whole[200] ^ 0x7F]) + whole[201:],
        b"x" * 500,
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"truncated or damaged|not an SVHN file"):
            images(tmp_path)
    file.write_bytes(
        b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(400)
    )
    with pytest.raises(ValueError, match=r"version 7.3"):
        images(tmp_path)
    for content in (
        {"X": np.zeros((32, 32, 3, 2)), "y": [[1], [2]]},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [11]]},
        {"z": 1},
    ):
        scipy.io.savemat(file, content)
        with pytest.raises(ValueError, match="not an SVHN file"):
            images(tmp_path)


def test_digits() -> None:
    train, test, whole = (images("digits", split) for split in ("train", "test", "all"))
    assert (len(train), len(test), len(whole)) == (1442, 355, 1797)
    assert whole.pixels.shape[1:] == (1, 8, 8)
    assert (float(whole.pixels.min()), float(whole.pixels.max())) == (0.0, 1.0)
    both = torch.cat([train.pixels, test.pixels]).flatten(1)
    assert torch.equal(both.unique(dim=0), whole.pixels.flatten(1).unique(dim=0))
    assert test.labels.bincount().min() >= 34


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_set_in_one_piece_is_split_by_class_without_overlap(labels: list[int]) -> None:
    train, test = part("train", np.array(labels)), part("test", np.array(labels))
    assert (
        sorted([*train, *test]) == list(part("all", np.array(labels))) == list(range(len(labels)))
    )
    assert all(
        sum(labels[place] == label for place in test) == labels.count(label) // 5
        for label in set(labels)
    )


@pytest.mark.parametrize(
    "names", [("images", "labels"), ("x", "y"), ("X", "Y"), ("data", "targets")]
)
def test_npz_of_bytes_and_of_floats_are_the_same_images(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    pixels, labels = (
        RNG.integers(0, 256, (10, 4, 6, 3), dtype=np.uint8),
        np.arange(10, dtype=np.uint8) % 2,
    )
    np.savez(
        tmp_path / "bytes.npz",
        **{names[0]: pixels, names[1]: labels},
        classes=["cat", "dog"],
        source_index=np.arange(10),
    )
    np.savez_compressed(
        tmp_path / "floats.npz",
        **{names[0]: pixels.transpose(0, 3, 1, 2) / 255, names[1]: labels[:, None].astype(int)},
    )
    for split, count in (("train", 8), ("test", 2), ("all", 10)):
        one, two = images(tmp_path / "bytes.npz", split), images(tmp_path / "floats.npz", split)
        assert one.pixels.shape == (count, 3, 4, 6)
        assert one.pixels.dtype == torch.float32
        torch.testing.assert_close(one.pixels, two.pixels)
        assert torch.equal(one.labels, two.labels)
    assert (one.classes, two.classes) == (("cat", "dog"), ("0", "1"))


def test_npz_in_two_parts(tmp_path: Path) -> None:
    grey = {
        "train": RNG.integers(0, 256, (3, 4, 4), dtype=np.uint8),
        "test": RNG.integers(0, 256, (2, 4, 4), dtype=np.uint8),
    }
    arrays = {f"x_{name}": pixels for name, pixels in grey.items()} | {
        "y_train": np.array([0, 1, 6]),
        "y_test": np.array([1, 0]),
    }
    np.savez(tmp_path / "both.npz", **arrays)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in grey:
        np.savez(folder / f"{name}.npz", images=grey[name], labels=arrays[f"y_{name}"])
    for place in (tmp_path / "both.npz", folder):
        assert images(place, "train").labels.tolist() == [0, 1, 6]
        got = images(place, "test")
        assert torch.equal(
            (got.pixels * 255).round(), torch.from_numpy(grey["test"])[:, None].float()
        )
        assert len(got.classes) == 7
        assert len(images(place, "all")) == 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"images": np.full((9, 1, 4, 4), 1.5), "labels": np.zeros(9, int)},
            r"lie in \[0, 1\], got values from 1.5 to 1.5",
        ),
        ({"images": np.full((9, 1, 4, 4), np.nan), "labels": np.zeros(9, int)}, "finite"),
        ({"images": np.full((9, 1, 4, 4), 200.0), "labels": np.zeros(9, int)}, "rescale"),
        ({"images": np.zeros((9, 4, 4, 3)), "labels": np.zeros(9, int)}, r"\(N, C, H, W\)"),
        (
            {"images": np.zeros((9, 3, 4, 4), np.uint8), "labels": np.zeros(9, int)},
            r"\(N, H, W, C\)",
        ),
        ({"images": np.zeros((9, 4, 4), np.int64), "labels": np.zeros(9, int)}, "uint8"),
        ({"images": np.zeros((9, 16)), "labels": np.zeros(9, int)}, "shape"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.zeros(8, int)}, "one for each image"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.zeros(9)}, "whole numbers"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.full(9, -1)}, "labels must lie in 0"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.full(9, 10**12)}, "numbers of classes"),
        ({"images": np.zeros((3, 4, 4)), "labels": np.zeros(3, int)}, "no test images"),
        ({"images": np.zeros((9, 4, 4))}, "needs arrays images and labels"),
        ({"images": np.array([{}] * 9), "labels": np.zeros(9, int)}, "pickles"),
        ({"images": np.zeros((0, 4, 4)), "labels": np.zeros(0, int)}, "one for each image"),
    ],
)
def test_a_wrong_npz_is_one_sentence(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        images(tmp_path / "a.npz", "test")


def test_a_damaged_npz(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, images=RNG.random((9, 8, 8)), labels=np.zeros(9, int))
    whole = file.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 3] ^= 0x55
    for content in (b"", whole[: len(whole) // 2], bytes(altered), pickle.dumps(Evil(print, "x"))):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"whole .npz|truncated or damaged"):
            images(file)


def save_pictures(folder: Path, count: int = 6, mode: str = "RGB", ending: str = "png") -> None:
    for label, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for k in range(count):
            Image.new(
                mode, (5, 4), color=k + 10 * label if mode == "L" else (k + 10 * label, 0, 255)
            ).save(folder / name / f"{k}.{ending}")


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    save_pictures(tmp_path / "set")
    (tmp_path / "set" / "ant" / "notes.txt").write_text("not a picture")
    got = images(tmp_path / "set", "test")
    assert (got.pixels * 255).round()[:, :, 0, 0].tolist() == [[4, 0, 255], [14, 0, 255]]
    assert got.classes == ("ant", "bee")
    assert images(tmp_path / "set", "train").pixels.shape == (10, 3, 4, 5)
    assert len(images(tmp_path / "set", "all")) == 12


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    for name, count in (("train", 2), ("test", 1)):
        save_pictures(tmp_path / name, count, "L", "bmp")
    assert images(tmp_path, "train").pixels.shape == (4, 1, 4, 5)
    assert images(tmp_path, "test").labels.tolist() == [0, 1]
    assert len(images(tmp_path, "all")) == 6
    (tmp_path / "test" / "bee").rename(tmp_path / "test" / "wasp")
    with pytest.raises(ValueError, match="same names"):
        images(tmp_path, "test")


def test_grey_and_coloured_pictures_together(tmp_path: Path) -> None:
    save_pictures(tmp_path)
    Image.new("L", (5, 4), color=77).save(tmp_path / "ant" / "4.png")
    assert (images(tmp_path, "test").pixels[0, :, 0, 0] * 255).round().tolist() == [77, 77, 77]


def test_wrong_pictures(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no pictures"):
        images(tmp_path)
    save_pictures(tmp_path)
    wrong = tmp_path / "bee" / "4.png"
    content = wrong.read_bytes()
    for broken in (b"", content[:40], b"GIF89a"):
        wrong.write_bytes(broken)
        with pytest.raises(ValueError, match="not a readable picture"):
            images(tmp_path)
    Image.new("RGB", (4, 4)).save(wrong)
    with pytest.raises(ValueError, match=r"4 x 4 pixels, but .* 5 x 4"):
        images(tmp_path)
    Image.new("I;16", (5, 4), color=3000).save(wrong)
    with pytest.raises(ValueError, match="8 bits"):
        images(tmp_path)


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no data set 'nowhere'"):
        images("nowhere")
    with pytest.raises(TypeError, match="got NoneType"):
        images(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='split must be "train"'):
        images("digits", "validation")
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(ValueError, match="is no data set"):
        images(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="one for each of the 2 images"):
        Images(torch.zeros(2, 1, 4, 4), torch.zeros(3, dtype=torch.int64), ("a",))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A web server on this machine in place of the official ones, and a cache of its own."""
    site, cache = tmp_path / "site", tmp_path / "cache"
    site.mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.os_cache", lambda _: cache)
    monkeypatch.setattr(
        _cifar, "URL", f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz"
    )
    monkeypatch.setattr(_svhn, "URL", f"http://127.0.0.1:{server.server_port}/")
    try:
        yield site, cache
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_cifar_is_downloaded_once_checked_and_kept(
    served: tuple[Path, Path], cifar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, cache = served
    with pytest.raises(ValueError, match=r"cannot be downloaded .* put it into"):
        images("cifar10")
    (site / cifar.name).write_bytes(cifar.read_bytes())
    with pytest.raises(ValueError, match="is not the official file"):
        images("cifar10")
    assert not list(cache.glob("*"))
    monkeypatch.setattr(_cifar, "MD5", md5(cifar.read_bytes()).hexdigest())
    assert len(images("cifar10", "train")) == 15
    (site / cifar.name).unlink()
    assert len(images("cifar10", "test")) == 3


def test_svhn_is_downloaded_by_parts(
    served: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, cache = served
    svhn(site, "test_32x32.mat", [1, 10, 3])
    monkeypatch.setitem(
        _svhn.MD5, "test_32x32.mat", md5((site / "test_32x32.mat").read_bytes()).hexdigest()
    )
    assert images("svhn").labels.tolist() == [1, 0, 3]
    assert [file.name for file in cache.iterdir()] == ["test_32x32.mat"]
    with pytest.raises(ValueError, match=r"train_32x32.mat .*cannot be downloaded"):
        images("svhn", "all")
