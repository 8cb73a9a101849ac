"""The command line: one file in this folder is one command, found by its file."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys

import typer
from rich.console import Console
from rich.text import Text

from attnscope.cli._options import checked

LONGEST = 1000
"""Characters of a sentence about a mistake; of a longer one the middle is left out."""
OUT_OF_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed")
"""How torch says that there is not enough memory."""

app = typer.Typer(
    name="attnscope",
    help=(
        "Measure how smooth attention is, certify how far its output can move, watch how its tokens"
        " flow with depth."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
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


for _info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
    if not _info.name.startswith("_"):
        _module = importlib.import_module(f"{__name__}.{_info.name}")
        app.command(name=_info.name)(checked(_module.command))


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
        if not isinstance(error, MemoryError) and not any(
            words in str(error) for words in OUT_OF_MEMORY
        ):
            raise
        _refuse(
            "this needs more memory than there is: ask for less at once, such as fewer or shorter"
            " sequences, fewer tokens or a smaller dimension."
        )


def _refuse(sentence: str) -> None:
    """Print what is wrong on one line and leave."""
    line = " ".join(sentence.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    console.print(Text("attnscope: ", "red") + Text(line))
    sys.exit(2)


def _prepare() -> None:
    """Names may hold what the terminal cannot show: it is shown by number. And no more memory than
    the machine has is taken, so that an absurd size is an error and not the end of other programs.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or soft > machine:
            resource.setrlimit(resource.RLIMIT_DATA, (machine, hard))
