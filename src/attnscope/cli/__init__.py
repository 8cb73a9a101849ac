"""The command line: one file in this folder is one command, found by its file."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys

import typer
from rich.console import Console
from rich.text import Text

from attnscope.cli._lazy import MARKUP, Commands, shortened
from attnscope.machine import is_out_of_memory, limit_memory

COLLECTED = (50_000, 20, 50)
"""Thresholds of the garbage collector: torch and transformers make a million objects that stay, and
looking through them again and again would be a fifth of the time until a model is loaded.
"""

app = typer.Typer(
    cls=Commands,
    name="attnscope",
    help=(
        "Measure how smooth attention is, certify how far its output can move, watch how its tokens"
        " flow with depth."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
)


def _version(asked: bool) -> bool:
    if asked:
        from attnscope import __version__

        typer.echo(f"attnscope {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Measure how smooth attention is, certify how far its output can move, watch how its tokens
    flow with depth.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake is one sentence and exit code 2, never a traceback."""
    _prepare()
    try:
        app(args=arguments)
    except BrokenPipeError:  # the reader has seen enough; nothing more can be said to it
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError, ImportError, OverflowError) as mistake:
        _refuse(str(mistake) or type(mistake).__name__)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _refuse(
            "this needs more memory than there is: ask for less at once, such as fewer or shorter"
            " sequences, fewer tokens or a smaller dimension."
        )


def _visible(text: str) -> str:
    """Signs that steer a terminal, by number: what was given may hold any."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def _refuse(sentence: str) -> None:
    """Print what is wrong on one line and leave."""
    line = shortened(_visible(" ".join(sentence.split())))
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    console.print(Text("attnscope: ", "red") + Text(line))
    sys.exit(2)


def _prepare() -> None:
    """Names may hold what the terminal cannot show: it is shown by number. And no more memory than
    the machine has is taken, so that an absurd size is an error and not the end of other programs.
    """
    gc.set_threshold(*COLLECTED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    limit_memory()
