"""Archives and pictures that lie, or are too large: one sentence, nothing executed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from attnscope.data import images


def archive(path: Path, shape: str = "(10, 8, 8)", flag: int = 0) -> Path:
    """An .npz whose pixels have this shape by their header."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    pixels = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 640
    np.save(path.with_suffix(".npy"), np.zeros(10, np.int64))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", pixels)
        file.write(path.with_suffix(".npy"), "labels.npy")
    content = bytearray(path.read_bytes())
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(sign) + offset] |= flag
    path.write_bytes(content)
    return path


def test_the_archive_itself_is_good(tmp_path: Path) -> None:
    assert len(images(archive(tmp_path / "good.npz"), "all")) == 10


@pytest.mark.parametrize(
    "shape", ["(1000000000000, 1000000)", "(-1, 8, 8)", "('a',)", "7", "(10, 8, 8" + ")" * 3]
)
def test_headers_that_lie(tmp_path: Path, shape: str) -> None:
    with pytest.raises(ValueError, match=r"damaged|promises more numbers"):
        images(archive(tmp_path / "lying.npz", shape), "all")


def test_an_encrypted_archive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encrypted"):
        images(archive(tmp_path / "locked.npz", flag=1), "all")


def test_scalars(tmp_path: Path) -> None:
    np.savez(tmp_path / "scalars.npz", images=np.array(1), labels=np.array(2))
    with pytest.raises(ValueError, match="one for each image"):
        images(tmp_path / "scalars.npz", "all")


@pytest.mark.parametrize("side", [12_000, 9_400, 2_100])
def test_pictures_of_many_megapixels_are_not_read(tmp_path: Path, side: int) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    (tmp_path / "class").mkdir()
    parts = (
        chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(b"\0" * 100)),
        chunk(b"IEND", b""),
    )
    (tmp_path / "class" / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(ValueError, match=f"{side} x {side} pixels, more than"):
        images(tmp_path, "all")
