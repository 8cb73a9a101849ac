"""The command line: one file in this folder is one command, found by its file."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer
from rich.console import Console
from rich.markup import escape

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
        app.command(name=_info.name)(_module.command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        app(args=arguments)
    except (ValueError, OSError, ImportError) as mistake:
        console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
        console.print(f"[red]attnscope:[/red] {escape(str(mistake))}")
        sys.exit(2)
