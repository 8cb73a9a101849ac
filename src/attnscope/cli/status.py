"""`attnscope status DIR`: how far a run is."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._run import say, spoken
from attnscope.studies.progress import spoken_rate
from attnscope.studies.status import Status, status

MOST_REASONS = 20


def command(folder: str = typer.Argument(..., help="Folder of results.")) -> None:
    """How far is the run in this folder, how fast, and what failed?

    Also while it runs: nothing is stopped or changed.
    """
    console, found = Console(), status(Path(folder))
    for sentence in lines(found):
        say(console, sentence)


def lines(found: Status) -> list[str]:
    """What is said, line by line."""
    state = "at work" if found.at_work else "not at work"
    told = [
        f"{found.study}, {state}: {found.finished:,} of {found.planned:,} cells done,"
        f" {found.failed:,} failed, {found.left:,} to go.",
        f"{found.rows:,} rows; {spoken(found.seconds)} of work are in them.",
    ]
    if found.failure_probability > 0:
        told.append(
            "All probable bounds so far hold together but with probability"
            f" {found.failure_probability:.3g}."
        )
    if found.at_work and found.seconds_left is not None:
        told.append(f"{spoken_rate(found.rate)}, about {spoken(found.seconds_left)} left.")
    elif not found.at_work and found.left:
        told.append("The command that made these results goes on where it stopped.")
    told += [f"{count:,} failed: {reason}" for reason, count in found.reasons[:MOST_REASONS]]
    if len(found.reasons) > MOST_REASONS:
        told.append(f"... and {len(found.reasons) - MOST_REASONS:,} other reasons.")
    return told
