"""Texts to measure on, and how they are cut into sequences."""

from __future__ import annotations

import re
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from attnscope.validation import described

NAMED = ("alice", "python-docs")
"""Texts that have a name; any other is a file."""
ALICE = Path(__file__).with_name("alice.txt")


def text(source: str | Path) -> str:
    """The text of a UTF-8 file as it is, or one of two named texts without their ornaments.

    "alice" is Alice in Wonderland [carroll65], the text of the papers; it ships with the package.
    "python-docs" is the manual that ships with Python (its `pydoc` topics in alphabetical order),
    so it depends on the Python version.

    >>> text("alice")[58:89]
    'CHAPTER I. Down the Rabbit-Hole'
    """
    if not isinstance(source, str | Path):
        raise TypeError(f'text needs a file, "alice" or "python-docs", got {described(source)}.')
    if not str(source).strip():
        raise ValueError('text needs a file, "alice" or "python-docs", got an empty name.')
    if source == "python-docs":
        return _plain(_python_docs())
    return _plain(_read(ALICE)) if source == "alice" else _read(Path(source))


def text_lines(source: str | Path) -> list[str]:
    """Several texts: the lines of a UTF-8 file that have words in them."""
    return [line.strip() for line in _read(Path(source)).split("\n") if line.strip()]


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


def _plain(content: str) -> str:
    """The text without its ornaments, lines of four signs or more that hold no letter and no digit.

    A row of asterisks is no sequence of words: a constant measured on one says nothing about texts.
    """
    words = re.compile(r"[^\W_]")
    lines = content.split("\n")
    return "\n".join(line for line in lines if words.search(line) or len("".join(line.split())) < 4)


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
            f'the text {str(path)!r} cannot be read ({reason}): pass a file, "alice" or'
            ' "python-docs".'
        ) from error
    if not content.strip():
        raise ValueError(f"{str(path)!r} is empty: pass a file with words in it.")
    return content
