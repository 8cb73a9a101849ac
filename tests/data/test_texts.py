"""Texts by name and by file, and the sequences cut from them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from attnscope.data import text, texts, windows

STORY = "Down the Rabbit-Hole: Alice was beginning to get very tired.\n"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A web server on this machine in place of the archive's, and a cache of its own."""
    site, cache = tmp_path / "site", tmp_path / "cache"
    site.mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.os_cache", lambda _: cache)
    monkeypatch.setattr(
        texts, "ALICE_ARCHIVE", f"http://127.0.0.1:{server.server_port}/gutenberg.zip"
    )
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def publish(site: Path, content: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(texts.ALICE_MEMBER, content)
        archive.writestr("gutenberg/other.txt", "another book")
    (site / "gutenberg.zip").write_bytes(packed.getvalue())


def test_alice_is_downloaded_once_checked_and_kept(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(served, STORY)
    monkeypatch.setattr(texts, "ALICE_SHA256", hashlib.sha256(STORY.encode()).hexdigest())
    assert text("alice") == STORY
    (served / "gutenberg.zip").unlink()
    assert text("alice") == STORY


def test_another_alice_is_refused(served: Path) -> None:
    publish(served, STORY)
    with pytest.raises(ValueError, match="expected 5ce9042c"):
        text("alice")


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.os_cache", lambda _: tmp_path)
    monkeypatch.setattr(texts, "ALICE_ARCHIVE", "http://127.0.0.1:9/gutenberg.zip")
    with pytest.raises(
        ValueError, match=r"could not be downloaded .*: pass a text file instead"
    ) as caught:
        text("alice")
    assert "\n" not in str(caught.value)


def test_alice_without_pooch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r'pip install "attnscope\[data\]"'):
        text("alice")


def test_python_docs_are_the_topics_in_order() -> None:
    docs = text("python-docs")
    assert docs == text("python-docs")
    assert len(docs.split()) > 50_000
    end = 0
    for name in sorted(topics):
        start = docs.index(topics[name].strip(), end)
        assert not docs[end:start].strip(), name
        end = start + len(topics[name].strip())
    assert end == len(docs)


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
