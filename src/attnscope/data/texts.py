"""Texts to measure on, and how they are cut into sequences."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from attnscope.validation import described

ALICE_ARCHIVE = (
    "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/gutenberg.zip"
)
ALICE_MEMBER = "gutenberg/carroll-alice.txt"
ALICE_SHA256 = "5ce9042c0d8536b072b61d4c7c4e6d70c72d9dbb5f3d816261326d9280749266"


def text(source: str | Path) -> str:
    """The text of a UTF-8 file, or one of two named texts.

    "python-docs" is the manual that ships with Python (its `pydoc` topics in alphabetical order),
    so it depends on the Python version; "alice" is Alice in Wonderland, downloaded once, checked by
    its hash and kept in a cache.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f'text needs a file, "python-docs" or "alice", got {described(source)}.')
    if not str(source).strip():
        raise ValueError('text needs a file, "python-docs" or "alice", got an empty name.')
    if source == "python-docs":
        return _python_docs()
    return _read(_alice() if source == "alice" else Path(source))


def windows(ids: Int[Tensor, " total"], n: int, samples: int) -> Int[Tensor, "samples n"]:
    """Sequence s is tokens [s n, (s + 1) n) of the text."""
    for name, value in (("n", n), ("samples", samples)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.is_floating_point():
        raise TypeError(f"ids must be whole numbers of shape (total,), got {described(ids)}.")
    if len(ids) < n * samples:
        raise ValueError(
            f"{samples} sequence{'s' * (samples > 1)} of {n} tokens need {n * samples} tokens, but"
            f" the text has {len(ids)}: use a longer text, fewer samples or shorter sequences."
        )
    return ids[: n * samples].reshape(samples, n)


def _python_docs() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def _alice() -> Path:
    if importlib.util.find_spec("pooch") is None:
        raise ValueError(
            'the text "alice" is downloaded with pooch: pip install "attnscope[data]", or pass a'
            " file."
        )
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    try:
        (kept,) = pooch.retrieve(
            ALICE_ARCHIVE,
            # the archive may change: what counts is the hash of the text in it, checked below
            known_hash=None,
            fname="gutenberg.zip",
            path=pooch.os_cache("attnscope"),
            processor=pooch.Unzip(members=[ALICE_MEMBER]),
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f'the text "alice" could not be downloaded from {ALICE_ARCHIVE}'
            f' ({type(error).__name__}): pass a text file instead, or use "python-docs".'
        ) from error
    found = hashlib.sha256(Path(kept).read_bytes()).hexdigest()
    if found != ALICE_SHA256:
        raise ValueError(
            f"{kept!r} has sha256 {found}, expected {ALICE_SHA256}: delete it and its archive, or"
            " pass a text file instead."
        )
    return Path(kept)


def _read(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start}): convert it"
            " first."
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f'the text {str(path)!r} cannot be read ({reason}): pass a file, "python-docs" or'
            ' "alice".'
        ) from error
    if not content.strip():
        raise ValueError(f"{str(path)!r} is empty: pass a file with words in it.")
    return content
