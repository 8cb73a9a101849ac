"""What commands share: from a study and its config to a run with files, tables and an exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from attnscope.studies import Outcome, Sheet, Stop, Study, Workbench, run
from attnscope.studies.store import BadFolder, Damaged, OtherResults

OUT = "Folder for results; the same command again goes on where it stopped."
OVERWRITE = "Replace results of other options that are in the folder."


def folder_of(out: str | None, *names: str) -> Path:
    """The folder that was asked for, or one made of these names."""
    made = "-".join(re.sub(r"[^\w.-]+", "-", Path(name).name or name) for name in names)
    return Path(out if out is not None else made)


def execute(
    study: Study,
    config: Any,
    *,
    folder: Path,
    overwrite: bool,
    options: Mapping[str, Any],
    workbench: Workbench | None = None,
    console: Console | None = None,
) -> Outcome:
    """Run a study and show its tables; leaves with exit code 130 or 143 when a signal ended it.

    Progress, signals, refusals of the folder and the list of files are the same for every command.
    """
    console = Console() if console is None else console
    stop = Stop(lambda sentence: say(console, sentence))
    try:
        outcome = run(
            study,
            config,
            folder=folder,
            overwrite=overwrite,
            options=options,
            workbench=workbench,
            console=console,
            stop=stop,
        )
    except OtherResults as error:
        raise ValueError(
            f"{error} Choose another --out, or pass --overwrite to replace them."
        ) from error
    except Damaged as error:
        raise ValueError(f"{error} Or choose another --out.") from error
    except BadFolder as error:
        raise ValueError(f"{error} Free some room, or choose another --out.") from error
    except KeyboardInterrupt:
        raise typer.Exit(stop.exit_code or 130) from None
    for sheet in outcome.table.summary():
        show(console, sheet)
    report(console, outcome, folder)
    return outcome


def report(console: Console, outcome: Outcome, folder: Path) -> None:
    """What a run left behind, and how sure it is."""
    for remark in outcome.remarks:
        say(console, remark)
    if outcome.failure_probability > 0:
        say(
            console,
            "All probable bounds of this run hold together but with probability"
            f" {outcome.failure_probability:.3g}.",
        )
    if outcome.files:
        say(console, f"In {folder}: " + ", ".join(outcome.files))
    if outcome.taken_up:
        say(console, f"{outcome.taken_up} cells were there already.")
    if not outcome.finished:
        say(console, "Stopped early: what was computed is kept; the same command again goes on.")


def show(console: Console, sheet: Sheet) -> None:
    """A sheet as a table; names with brackets are no markup."""
    if sheet.title:
        say(console, sheet.title)
    table = Printed(box=box.SIMPLE_HEAD, padding=0)
    for name in sheet.columns:
        table.add_column(name, justify="right", no_wrap=True)
    for line in sheet.lines:
        table.add_row(*(Text(entry) for entry in line))
    console.print(table)
    if sheet.note:
        console.print(sheet.note, markup=False, highlight=False, emoji=False)


def say(console: Console, sentence: str) -> None:
    """Print a sentence as it is."""
    console.print(sentence, markup=False, highlight=False, emoji=False, soft_wrap=True)
