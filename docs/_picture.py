"""The picture of the README: `python docs/_picture.py demo/report.html` writes docs/page.png."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1120, "height": 1020}
COLOURS = 96
"""Enough for a page of flat colours, and a quarter of the size."""


def main(page: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        shown = browser.new_page(viewport=SIZE, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        content = shown.screenshot()
        browser.close()
    picture = Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS)
    picture.save(Path(__file__).parent / "page.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
