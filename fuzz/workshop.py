"""What can be wrong with a file of every kind that a command reads."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

READ_BY: dict[str, tuple[str, ...]] = {
    "scores": ("npy",),
    "values": ("npy",),
    "space": ("npy",),
    "cloud": ("npy",),
    "data": ("npz", "pictures"),
    "checkpoint": ("network",),
    "control": ("network",),
    "model": ("model",),
    "text": ("text",),
    "ids": ("ids",),
    "file": ("stack",),
    "folder": ("run",),
    "out": ("run",),
}
"""Which options read which kind of file."""


# what can be wrong: each takes the bytes of a good file

Spoil = Callable[[bytes, Random], bytes]


def _npy(header: str, body: bytes = b"") -> bytes:
    """A .npy file with a header of one's own."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def _array(value: object) -> bytes:
    made = io.BytesIO()
    np.save(made, np.asarray(value), allow_pickle=True)
    return made.getvalue()


class _Bomb:
    """A pickle that leaves a traceback where it is executed."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise BaseException('Traceback (most recent call last): a pickle was run')",)


def _flipped(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 9)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _lying(shape: str, kind: str = "<f8") -> bytes:
    return _npy(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}", b"\0" * 64)


ANY: dict[str, Spoil] = {
    "empty": lambda content, rng: b"",
    "one byte": lambda content, rng: b"\0",
    "truncated": lambda content, rng: content[: rng.randrange(len(content) + 1)],
    "flipped bytes": _flipped,
    "doubled": lambda content, rng: content + content,
    "noise": lambda content, rng: rng.randbytes(rng.randrange(1, 5000)),
    "text": lambda content, rng: b"hello, I am no file of this kind\n",
    "a pickle": lambda content, rng: __import__("pickle").dumps(_Bomb()),
}
NPY: dict[str, Spoil] = {
    "scalar": lambda content, rng: _array(3.0),
    "objects": lambda content, rng: _array([{"a": 1}, _Bomb()]),
    "a row": lambda content, rng: _array([1.0, 2.0, 3.0]),
    "no rows": lambda content, rng: _array(np.zeros((0, 2))),
    "strings": lambda content, rng: _array(["a", "b"]),
    "complex": lambda content, rng: _array([[1j, 2], [3, 4]]),
    "NaN": lambda content, rng: _array([[np.nan, 0], [0, 1]]),
    "infinite": lambda content, rng: _array([[np.inf, 0], [0, 1]]),
    "enormous numbers": lambda content, rng: _array(np.eye(2) * 1e308),
    "tiny numbers": lambda content, rng: _array(np.eye(2) * 5e-324),
    "large numbers": lambda content, rng: _array(np.eye(2) * 1e155),
    "negative": lambda content, rng: _array([-1, -2]),
    "zeros": lambda content, rng: _array(np.zeros((2, 2))),
    "booleans": lambda content, rng: _array(np.eye(2, dtype=bool)),
    "half precision": lambda content, rng: _array(np.eye(2, dtype=np.float16)),
    "long double": lambda content, rng: _array(np.eye(2, dtype=np.longdouble)),
    "big endian": lambda content, rng: _array(np.eye(2, dtype=">f8")),
    "dates": lambda content, rng: _array(np.zeros((2, 2), dtype="datetime64[s]")),
    "records": lambda content, rng: _array(np.zeros((2, 2), dtype=[("a", "f8"), ("b", "i4")])),
    "many axes": lambda content, rng: _array(np.zeros((1,) * 32)),
    "huge shape": lambda content, rng: _lying("(1000000000000, 1000000000000)"),
    "large shape": lambda content, rng: _lying("(2, 500000000)"),
    "negative shape": lambda content, rng: _lying("(-2, 2)"),
    "shape of strings": lambda content, rng: _lying("('a', 2)"),
    "no tuple": lambda content, rng: _lying("2"),
    "unknown kind": lambda content, rng: _lying("(2, 2)", "<q99"),
    "void kind": lambda content, rng: _lying("(2, 2)", "|V99999999999"),
    "deep header": lambda content, rng: _npy("(" * 9000 + ")" * 9000),
    "code in the header": lambda content, rng: _npy("__import__('os').abort()"),
    "version 9": lambda content, rng: b"\x93NUMPY\x09\x00" + content[8:],
}


def _zip(entries: dict[str, bytes], **how: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", **how) as file:  # type: ignore[arg-type]
        for name, content in entries.items():
            file.writestr(name, content)
    return made.getvalue()


def _entries(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def _one_spoilt(content: bytes, rng: Random) -> bytes:
    entries = _entries(content)
    name = rng.choice(sorted(entries))
    spoil = rng.choice([*NPY.values(), *ANY.values()])
    return _zip(entries | {name: spoil(entries[name], rng)})


def _encrypted(content: bytes, rng: Random) -> bytes:
    """The flag of encryption in the local and central headers; the content stays as it is."""
    changed = bytearray(content)
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = changed.find(sign)
        while place >= 0:
            changed[place + offset] |= 1
            place = changed.find(sign, place + 4)
    return bytes(changed)


def _images_as(pixels: object, labels: object) -> Spoil:
    return lambda content, rng: _zip({"images.npy": _array(pixels), "labels.npy": _array(labels)})


NPZ: dict[str, Spoil] = {
    "an entry spoilt": _one_spoilt,
    "encrypted": _encrypted,
    "no entries": lambda content, rng: _zip({}),
    "an entry missing": lambda content, rng: _zip(dict([*_entries(content).items()][1:])),
    "a bomb": lambda content, rng: _zip(
        {"images.npy": _lying("(400000000, 1)", "|u1") + b"\0" * 200_000_000, "labels.npy": b""},
        compression=zipfile.ZIP_DEFLATED,
    ),
    "an unknown compression": lambda content, rng: content.replace(
        b"PK\x01\x02\x14\x03\x14\0\0\0\0\0", b"PK\x01\x02\x14\x03\x14\0\0\0\x63\0"
    ),
    "scalars": _images_as(1, 2),
    "an enormous label": _images_as(np.zeros((5, 8, 8), np.uint8), [0, 0, 0, 0, 10**18]),
    "negative labels": _images_as(np.zeros((5, 8, 8), np.uint8), [-1, -1, -1, -1, -1]),
    "NaN pixels": _images_as(np.full((10, 1, 8, 8), np.nan), [0] * 10),
    "pixels above 1": _images_as(np.full((10, 1, 8, 8), 7.0), [0] * 10),
    "one pixel": _images_as(np.zeros((10, 1, 1), np.uint8), [0] * 10),
    "seven channels": _images_as(np.zeros((10, 8, 8, 7), np.uint8), [0] * 10),
    "no image": _images_as(np.zeros((0, 8, 8), np.uint8), []),
    "one image": _images_as(np.zeros((1, 8, 8), np.uint8), [0]),
    "half precision": _images_as(np.zeros((10, 1, 8, 8), np.float16), [0] * 10),
    "odd sides": _images_as(np.zeros((10, 7, 5), np.uint8), [0] * 10),
}
TEXT: dict[str, Spoil] = {
    "latin-1": lambda content, rng: "élève à Paris ".encode("latin-1") * 50,
    "a byte order mark": lambda content, rng: b"\xff\xfe" + "the cat".encode("utf-16-le"),
    "zeros": lambda content, rng: b"\0" * 1000,
    "spaces": lambda content, rng: b" \n\t" * 100,
    "one word": lambda content, rng: b"the",
    "one long word": lambda content, rng: b"x" * 1_000_000,
    "control characters": lambda content, rng: bytes(range(1, 32)) * 50,
    "emoji": lambda content, rng: "😀👩‍👩‍👧 ".encode() * 100,
    "markup": lambda content, rng: b"[red] [/] [bold the cat [/bold] " * 100,
}
IDS: dict[str, Spoil] = NPY | {
    "words": lambda content, rng: b"the cat",
    "too large": lambda content, rng: b"1 2 3 99999999999999999999 " * 50,
    "negative text": lambda content, rng: b"-1 -2 -3 " * 50,
    "beyond the vocabulary": lambda content, rng: _array(np.arange(200) + 10**6),
    "unsigned": lambda content, rng: _array(np.full(200, 2**64 - 1, dtype=np.uint64)),
    "a table": lambda content, rng: _array(np.zeros((10, 10), np.int64)),
    "fractions": lambda content, rng: b"1.5 2.5 " * 50,
}


def _png(width: int, height: int, mode: int = 0, depth: int = 8) -> bytes:
    """A PNG whose header promises this many pixels, with a few bytes of them."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, mode, 0, 0, 0)
    body = zlib.compress(b"\0" * 5000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


PICTURES: dict[str, Spoil] = {
    "144 megapixels": lambda content, rng: _png(12000, 12000),
    "89 megapixels": lambda content, rng: _png(9400, 9400),
    "huge": lambda content, rng: _png(2**31 - 1, 2**31 - 1),
    "no pixels": lambda content, rng: _png(0, 0),
    "16 bits": lambda content, rng: _png(8, 8, 0, 16),
    "a palette without one": lambda content, rng: _png(8, 8, 3),
    "another size": lambda content, rng: _png(9, 9),
}


def _spoilt_json(content: bytes, rng: Random) -> bytes:
    """One value of the JSON replaced, wherever it is."""
    whole = json.loads(content)
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node)  # type: ignore[arg-type]
        for key, value in list(pairs):
            places.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(whole)
    node, key = rng.choice(places)
    values = (
        None, True, -1, 0, 1, 3, 1.5, 10**12, 10**400, 1e308, "", "[red]", "nonsense", [], {}, [1],
        {"a": 1}, "softmax", float("nan"), float("inf"), -(10**9), "1", 10**5, [10**6] * 3,
    )  # fmt: skip
    if rng.random() < 0.1:
        del node[key]  # type: ignore[attr-defined]
    else:
        node[key] = rng.choice(values)  # type: ignore[index]
    return json.dumps(whole).encode()


JSON: dict[str, Spoil] = {
    "a value replaced": _spoilt_json,
    "several values replaced": lambda content, rng: _spoilt_json(
        _spoilt_json(_spoilt_json(content, rng), rng), rng
    ),
    "deep lists": lambda content, rng: b"[" * 100_000,
    "deep lists, closed": lambda content, rng: b"[" * 50_000 + b"]" * 50_000,
    "deep objects": lambda content, rng: b'{"config":' * 50_000 + b"1" + b"}" * 50_000,
    "a number": lambda content, rng: b"7",
    "a list": lambda content, rng: b"[1, 2]",
    "null": lambda content, rng: b"null",
    "many digits": lambda content, rng: b'{"version": ' + b"9" * 10_000 + b"}",
    "a surrogate": lambda content, rng: content.replace(b'"softmax"', b'"\\ud800"'),
}


def _tensors(header: object, body: bytes = b"\0" * 64) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


TENSORS: dict[str, Spoil] = {
    "a header of 2^63 bytes": lambda content, rng: struct.pack("<Q", 2**63) + content[8:],
    "no tensors": lambda content, rng: _tensors({}, b""),
    "huge shape": lambda content, rng: _tensors(
        {"w": {"dtype": "F32", "shape": [10**12, 10**12], "data_offsets": [0, 64]}}
    ),
    "wrong offsets": lambda content, rng: _tensors(
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 10**15]}}
    ),
    "another tensor": lambda content, rng: _tensors(
        {"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}
    ),
    "whole numbers": lambda content, rng: content.replace(b'"F32"', b'"I32"'),
    "deep header": lambda content, rng: _tensors(b"[" * 50_000),
    "NaN": lambda content, rng: content[:-4] + struct.pack("<f", float("nan")),
}
FOLDERS = {
    "network": {"config.json": JSON, "network.safetensors": TENSORS},
    "model": {
        "config.json": JSON,
        "model.safetensors": TENSORS,
        "tokenizer.json": JSON,
        "tokenizer_config.json": JSON,
    },
}
FILES = {"npy": NPY, "npz": NPZ, "text": TEXT, "ids": IDS, "stack": NPZ}
GOOD = {
    "npy": "NPY", "npz": "NPZ", "text": "TEXT", "ids": "IDS", "stack": "STACK", "model": "MODEL",
    "network": "NETWORK", "pictures": "PICTURES",
}  # fmt: skip
ENDINGS = {"npy": ".npy", "npz": ".npz", "text": ".txt", "ids": ".npy", "stack": ".npz"}
PLACES = ("a folder", "not readable", "gone", "a loop", "a fifo's name")
LEFT = (
    "results.sqlite",
    "run.json",
    "results.jsonl",
    "config.json",
    "log.jsonl",
    "training.safetensors",
)


def chosen(kind: str, rng: Random) -> str:
    """What will be wrong with the file that `make` makes from the same randomness."""
    return _choice(kind, rng)[0]


def _choice(kind: str, rng: Random) -> tuple[str, str, Spoil | None]:
    """(in words, which file, what is done to it)."""
    if rng.random() < 0.08:
        name = rng.choice(PLACES)
        return name, name, None
    if kind in FOLDERS:
        file = rng.choice(sorted(FOLDERS[kind]))
        faults = ANY | FOLDERS[kind][file]
        if rng.random() < 0.1:
            return f"{file} gone", file, lambda content, rng: b"GONE"
    elif kind == "run":
        file, faults = rng.choice(LEFT), ANY | JSON
    else:
        file, faults = "", ANY | (PICTURES if kind == "pictures" else FILES[kind])
    fault = rng.choice(sorted(faults))
    return f"{file} {fault}".strip(), file, faults[fault]


def make(kind: str, rng: Random, goods: dict[str, Path], target: Path) -> Path:
    """A file or folder of this kind with something wrong."""
    _, file, spoil = _choice(kind, rng)
    path = target.with_suffix(ENDINGS.get(kind, ""))
    if spoil is None:
        return _placed(file, path)
    if kind == "run":
        path.mkdir()
        (path / file).write_bytes(spoil(b'{"version": 1, "config": {"a": 1}}', rng))
        return path
    good = goods[GOOD[kind]]
    if kind == "pictures" or kind in FOLDERS:
        shutil.copytree(good, path)
        spoilt = path / file if file else rng.choice(sorted(path.rglob("*.png")))
        content = spoil(spoilt.read_bytes() if spoilt.exists() else b"{}", rng)
        spoilt.unlink(missing_ok=True)
        if content != b"GONE":
            spoilt.write_bytes(content)
        if file == "network.safetensors" or (kind == "network" and rng.random() < 0.3):
            _sign(path)
        return path
    path.write_bytes(spoil(good.read_bytes() if good.exists() else b"", rng))
    return path


def _sign(folder: Path) -> None:
    """Let config.json vouch for the weights as they are, so that they are really read."""
    import hashlib

    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        described = json.loads((folder / "config.json").read_bytes())
        weights = (folder / "network.safetensors").read_bytes()
        described["sha256"] = hashlib.sha256(weights).hexdigest()
        (folder / "config.json").write_text(json.dumps(described))


def _placed(how: str, path: Path) -> Path:
    if how == "a folder":
        path.mkdir()
    elif how == "not readable":
        path.write_bytes(b"x")
        path.chmod(0)
    elif how == "a loop":
        path.symlink_to(path.name)
    elif how == "a fifo's name":
        return Path("/dev/fd/9")
    return path
