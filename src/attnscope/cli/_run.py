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

from attnscope.report import of_folder
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
    **how: Any,
) -> Outcome:
    """Run a study and show its tables; leaves with exit code 130 or 143 when a signal ended it.

    Progress, signals, refusals of the folder and the list of files are the same for every command;
    `how` is told to the driver: the engine, the cache, what to do with failures.
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
            **how,
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
    page = of_folder(folder, outcome.files) if outcome.files else None
    tell(console, outcome, folder, page)
    return outcome


def tell(console: Console, outcome: Outcome, folder: Path, page: Path | None = None) -> None:
    """What a run left behind, how sure it is, and where to look at it."""
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
    if page is not None:
        say(console, f"To look at: {page}")
    if not outcome.finished:
        say(console, "Stopped early: what was computed is kept; the same command again goes on.")


def show(console: Console, sheet: Sheet) -> None:
    """A sheet as a table; names with brackets are no markup."""
    if sheet.title:
        say(console, sheet.title)
    table = Printed(
        box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0) if sheet.wrap else 0, show_lines=False
    )
    widths = [max(map(len, entries)) for entries in zip(sheet.columns, *sheet.lines, strict=True)]
    for place, name in enumerate(sheet.columns):
        # where there is too little room, the widest column breaks, and numbers stay whole
        whole = not sheet.wrap and place != widths.index(max(widths))
        table.add_column(name, justify="left" if sheet.wrap else "right", no_wrap=whole)
    for line in sheet.lines:
        table.add_row(*(Text(entry) for entry in line))
    console.print(table)
    if sheet.note:
        console.print(sheet.note, markup=False, highlight=False, emoji=False)


def spoken(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:,.0f} days"


def say(console: Console, sentence: str) -> None:
    """Print a sentence as it is."""
    console.print(sentence, markup=False, highlight=False, emoji=False, soft_wrap=True)
