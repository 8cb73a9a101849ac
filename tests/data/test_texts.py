"""Texts by name and by file, and the sequences cut from them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from attnscope.data import text, texts, windows


def words(content: str) -> list[str]:
    return re.findall(r"[^\W_]+", content)


def test_alice_ships_with_the_package_unaltered_but_for_its_ornaments() -> None:
    """The file is that of the Gutenberg selection of NLTK, on which the papers measure."""
    shipped = texts.ALICE.read_bytes()
    known = "5ce9042c0d8536b072b61d4c7c4e6d70c72d9dbb5f3d816261326d9280749266"
    assert hashlib.sha256(shipped).hexdigest() == known
    alice = text("alice")
    assert words(alice) == words(shipped.decode())
    assert "*    *" in shipped.decode()
    assert "*    *" not in alice
    untouched = shipped.decode().split("  *    *")[0]
    assert alice.startswith(untouched)


def test_python_docs_are_the_topics_in_order_without_their_ornaments() -> None:
    docs = text("python-docs")
    assert docs == text("python-docs")
    assert len(docs.split()) > 50_000
    assert words(docs) == words("\n\n".join(topics[name] for name in sorted(topics)))


@pytest.mark.parametrize("name", ["alice", "python-docs"])
def test_no_line_of_a_named_text_is_an_ornament(name: str) -> None:
    for line in text(name).split("\n"):
        assert len("".join(line.split())) < 4 or any(c.isalnum() for c in line), line


def test_a_file_keeps_its_ornaments(tmp_path: Path) -> None:
    path = tmp_path / "ornaments.txt"
    path.write_text("one\n* * * * *\ntwo\n")
    assert text(path) == "one\n* * * * *\ntwo\n"


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("Äpfel und Birnen\n", encoding="utf-8")
    assert text(path) == text(str(path)) == "Äpfel und Birnen\n"


@pytest.mark.usefixtures("unchecked")
def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n\t\n")
    (tmp_path / "latin.txt").write_bytes("Äpfel".encode("latin-1"))
    for name, complaint in (
        ("empty.txt", "is empty"),
        ("latin.txt", "is not UTF-8 text"),
        ("none.txt", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=complaint):
            text(tmp_path / name)
    with pytest.raises(ValueError, match="empty name"):
        text("")
    with pytest.raises(TypeError, match="text needs a file"):
        text(3)  # type: ignore[arg-type]


def test_windows_follow_one_another() -> None:
    cut = windows(torch.arange(100, 150), n=7, samples=4)
    assert [row.tolist() for row in cut] == [
        list(range(100 + 7 * s, 107 + 7 * s)) for s in range(4)
    ]
    assert windows(torch.arange(28), n=7, samples=4).shape == (4, 7)


@pytest.mark.usefixtures("unchecked")
def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ValueError, match="4 sequences of 7 tokens need 28 tokens, but the text has 27"
    ):
        windows(torch.arange(27), n=7, samples=4)
    for n, samples in ((0, 1), (1, 0), (True, 1), (1.0, 1)):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            windows(torch.arange(27), n=n, samples=samples)  # type: ignore[arg-type]
    for ids in (torch.arange(27.0), torch.zeros(2, 9, dtype=torch.long), [1, 2, 3]):
        with pytest.raises(TypeError, match="ids must be whole numbers"):
            windows(ids, n=1, samples=1)  # type: ignore[arg-type]
