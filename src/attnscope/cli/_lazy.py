"""Commands that are imported when they run: `attnscope --help` reads their first lines without
loading what they need.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import os
import pkgutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from attnscope.cli._options import checked

MARKUP: Literal["markdown"] = "markdown"
FOLDER = Path(__file__).parent
LONGEST = 1000
"""Characters of a sentence about a mistake; of a longer one the middle is left out."""


class Commands(TyperGroup):
    """Every file of this folder is a command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return Later(cmd_name, help=said(cmd_name)) if cmd_name in names() else None

    def make_context(self, *given: Any, **named: Any) -> Any:
        with _briefly():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        with _briefly():
            return super().invoke(ctx)

    @property
    def commands(self) -> dict[str, Any]:
        """The commands themselves, all of them loaded."""
        return {name: loaded(name) for name in names()}

    @commands.setter
    def commands(self, given: object) -> None:
        """The files say which commands there are."""


class Later(TyperCommand):
    """Name and help of a command; when it is called the command itself takes over."""

    def __init__(self, name: str, help: str) -> None:
        super().__init__(name, help=help, rich_markup_mode=MARKUP)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        return loaded(str(self.name)).make_context(info_name, args, *rest, **extra)


def shortened(sentence: str) -> str:
    """What is wrong, without the middle of what was given."""
    if len(sentence) <= LONGEST:
        return sentence
    return f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"


@contextlib.contextmanager
def _briefly() -> Iterator[None]:
    """The parser of options quotes what it cannot read, however long that is."""
    try:
        yield
    except Exception as mistake:
        if isinstance(getattr(mistake, "message", None), str):
            mistake.message = shortened(mistake.message)  # type: ignore[attr-defined]
        raise


@functools.cache
def names() -> list[str]:
    found = (info.name for info in pkgutil.iter_modules([str(FOLDER)]))
    return sorted(name for name in found if not name.startswith("_"))


def said(name: str) -> str:
    """The docstring of the file's `command`, read without running it."""
    for node in ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            return ast.get_docstring(node) or ""
    return ""


@contextlib.contextmanager
def _left_at_once() -> Iterator[None]:
    """Ctrl-C ends the process while there is nothing to keep: libraries that are being imported
    make other errors of an interrupt, or swallow it.
    """
    usual = signal.default_int_handler
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


@functools.cache
def loaded(name: str) -> Any:
    """The command of this file behind the checks that all share."""
    with _left_at_once():
        module = importlib.import_module(f"attnscope.cli.{name}")
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=MARKUP
    )
    alone.command(name=name)(checked(module.command))
    return typer.main.get_command(alone)
