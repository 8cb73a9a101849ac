"""Token ids from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.data import read_ids


def test_an_array_and_a_text_give_the_same_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([3, 1, 4, 1, 5], dtype=np.uint16))
    (tmp_path / "ids.txt").write_text("3, 1 4\n1\t5,\n")
    expected = torch.tensor([3, 1, 4, 1, 5])
    for name in ("ids.npy", "ids.txt"):
        found = read_ids(tmp_path / name)
        assert found.dtype == torch.int64
        assert found.equal(expected)


@pytest.mark.parametrize(
    "content",
    [b"", b"the cat", b"1.5 2", b"-1 2", b"1 99999999999999999999", "٣".encode(), b"\xff\xfe"],
)
def test_texts_that_hold_no_ids(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"must hold token ids|at least 0"):
        read_ids(tmp_path / "ids.txt")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2), np.int64),
        np.zeros(0, np.int64),
        np.array(3),
        np.array([0.5]),
        np.array([2**64 - 1], np.uint64),
        np.array([-1]),
        np.array([{}]),
    ],
)
def test_arrays_that_hold_no_ids(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "ids.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=r"ids\.npy"):
        read_ids(tmp_path / "ids.npy")


@pytest.mark.parametrize("length", [0, 1, 50, 130])
def test_a_cut_array(tmp_path: Path, length: int) -> None:
    np.save(tmp_path / "ids.npy", np.arange(100))
    whole = (tmp_path / "ids.npy").read_bytes()
    (tmp_path / "ids.npy").write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"is no \.npy file of whole numbers"):
        read_ids(tmp_path / "ids.npy")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_ids(tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match="from a file"):
        read_ids("")
