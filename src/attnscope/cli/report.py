"""`attnscope report DIR`: the page of a run."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._run import say
from attnscope.report import of_folder


def command(
    folder: str = typer.Argument(..., help="Folder of results, of a run that is over or not."),
    show: bool = typer.Option(False, "--open", help="Show it in the browser, where there is one."),
) -> None:
    """Write report.html into the folder of a run: one file to look at, without a network.

    Works on runs that were killed, cut short or written by another version, too: the page says what
    is missing and shows the rest. A folder of runs gets one page for all of them.
    """
    page = of_folder(Path(folder))
    say(Console(), f"To look at: {page}")
    if show and _has_screen():
        webbrowser.open(page.resolve().as_uri())


def _has_screen() -> bool:
    """Whether a browser can show itself; without a screen one of text would take the terminal."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in screens)
