"""The tests of pages see what is wrong with a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser_pages import PHONE, open_page, sticking_out, violations

GOOD = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>t</title><main><h1>A</h1></main>"
)


def page(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(GOOD + body)
    return path


def test_a_plain_page_passes(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    shown = open_page(page(tmp_path, "<p>text</p>"), width=PHONE)
    assert shown.title() == "t"
    assert sticking_out(shown) == []
    assert violations(shown, "color-contrast", "image-alt") == []


def test_what_sticks_out_and_what_cannot_be_read_is_found(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    wide = "<p style='width:600px;color:#eee;background:#fff'>text</p>"
    shown = open_page(page(tmp_path, wide), width=PHONE)
    assert len(sticking_out(shown)) == 1
    assert len(violations(shown, "color-contrast")) == 1


@pytest.mark.parametrize(
    "body",
    [
        "<script>console.error('no')</script>",
        "<script>nothing.here()</script>",
        "<img alt='' src='https://example.org/a.png'>",
    ],
)
def test_errors_and_requests_are_caught(body: str, tmp_path: Path, browser: Any) -> None:
    run = open_page.__wrapped__(browser)
    opened = next(run)
    opened(page(tmp_path, body)).wait_for_timeout(50)
    with pytest.raises(AssertionError):
        next(run)


def test_other_tests_can_run_event_loops(browser: Any) -> None:
    async def nothing() -> int:
        return 3

    assert browser.is_connected()
    assert asyncio.run(nothing()) == 3
