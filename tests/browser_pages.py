"""Pages in a real browser: one Chromium for all tests of a process, without a network.

A page that logs an error, throws, or asks anything but its own file fails the test that opened it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
LOCAL = ("file:", "data:", "blob:", "about:")
PHONE = 390
DESKTOP = 1280
NO_BROWSER = "no browser: install Chromium (apt-get install chromium) to run the tests of pages"


def executable() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium. Playwright marks its event loop as running for as long as it lives, so that no
    other test of the process could run one: the mark is set while a page is open only.
    """
    path = executable()
    if path is None:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    loop = asyncio.get_running_loop()
    made = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
    asyncio._set_running_loop(None)
    yield made
    asyncio._set_running_loop(loop)
    made.close()
    playwright.stop()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """`open_page(path, width=PHONE, dark=True)`: a Playwright page that shows this file.

    At the end of the test nothing may have gone wrong on any page that it opened.
    """
    loop = browser._loop
    asyncio._set_running_loop(loop)
    problems: list[str] = []
    contexts: list[Any] = []

    def opened(
        path: Path, width: int = DESKTOP, height: int = 900, dark: bool = False, anchor: str = ""
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on(
            "console",
            lambda told: (
                problems.append(f"console: {told.text}")
                if told.type in ("error", "warning")
                else None
            ),
        )
        page.on(
            "request",
            lambda asked: (
                problems.append(f"request: {asked.url}")
                if not asked.url.startswith(LOCAL)
                else None
            ),
        )
        page.goto(path.resolve().as_uri() + anchor)
        return page

    try:
        yield opened
        assert problems == []
    finally:
        for context in contexts:
            context.close()
        asyncio._set_running_loop(None)


def sticking_out(page: Any) -> list[str]:
    """Elements that reach beyond the right edge of the window, but those in a box that scrolls."""
    return page.evaluate(
        """() => {
        const width = document.documentElement.clientWidth;
        const scrolls = (element) => {
            for (let box = element.parentElement; box; box = box.parentElement) {
                const how = getComputedStyle(box).overflowX;
                if (['auto', 'scroll', 'hidden', 'clip'].includes(how)) return true;
            }
            return false;
        };
        return [...document.body.querySelectorAll('*')]
            .filter((one) => one.getBoundingClientRect().right > width + 1 && !scrolls(one))
            .map((one) => one.outerHTML.slice(0, 120));
        }"""
    )


def violations(page: Any, *rules: str) -> list[str]:
    """What axe-core finds wrong: contrast, names of controls, order of headings; `rules` to ask for
    some only.
    """
    from axe_playwright_python.sync_playwright import Axe

    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{one['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for one in found
        for node in one["nodes"]
    ]
