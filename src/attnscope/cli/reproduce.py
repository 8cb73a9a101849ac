"""`attnscope reproduce`: the figures of the papers, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from attnscope.cli._engine import CACHE, ENGINE, SCHEDULER, WORKERS, cache_of, engine_of
from attnscope.cli._run import OUT, folder_of, say, show, spoken
from attnscope.report import of_folder, runs_in
from attnscope.studies import Sheet, Stop
from attnscope.studies.papers import TOPICS, PaperFigure, find
from attnscope.studies.reproduce import (
    DAMAGED,
    FINISHED,
    KEPT,
    Done,
    Reproduced,
    chosen,
    expected,
    reproduce,
    settings,
)

HELP = {
    KEPT: "They are kept; --redo replaces them.",
    DAMAGED: "--redo computes them again.",
}
NAMES = typer.Argument(..., help="`list` shows every figure; names of figures, or `all`.")


def command(
    names: list[str] = NAMES,
    full: bool = typer.Option(
        False, "--full", help="The papers' own settings; says first how long it will take."
    ),
    text: str | None = typer.Option(
        None, help="Text for figures that read one, as in `attnscope measure` (default: alice)."
    ),
    models: str | None = typer.Option(
        None, help="Models for figures on real networks, as in `attnscope measure`: a,b,c."
    ),
    decoder: str | None = typer.Option(
        None, help="A model of BERT's kind that is also measured with a causal mask."
    ),
    data: str | None = typer.Option(
        None, help="Folder that holds CIFAR-10 and SVHN (default: the cache, no download)."
    ),
    redo: bool = typer.Option(
        False, "--redo", help="Replace results of another version, of other settings, or damaged."
    ),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="With `list`: the table of the docs."),
    engine: str = typer.Option("here", help=ENGINE),
    workers: int | None = typer.Option(None, min=1, help=WORKERS),
    scheduler: str | None = typer.Option(None, help=SCHEDULER),
    cache: str | None = typer.Option(None, help=CACHE),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: reproduce, or reproduce-full.)"),
) -> None:
    """Reproduce the experiments of the papers: rows, pictures and verdicts.

    Each figure leaves a folder with its rows (CSV), its pictures and run.json; verdicts.json and
    verdicts.csv have what all of them say. A finished figure is not redone, one that fails does not
    stop the others, Ctrl-C keeps what was computed.
    """
    known, console = find(), Console()
    if "list" in names:
        if len(names) > 1:
            raise ValueError(f"`list` stands alone, got {' '.join(names)}.")
        _list(console, known, markdown)
        return
    if markdown:
        raise ValueError("--markdown goes with `list`.")
    figures = chosen(names, known)
    if threads is not None:
        torch.set_num_threads(threads)
    changes: dict[str, Any] = {"text": text, "data": data, "decoder": decoder}
    if models is not None:
        changes["models"] = tuple(name.strip() for name in models.split(","))
    changes = {name: value for name, value in changes.items() if value is not None}
    _say_unused(console, figures, full, changes)
    if full:
        say(console, f"The papers' settings take about {spoken(sum(expected(figures, full)))}.")
    folder = folder_of(out, "reproduce-full" if full else "reproduce")
    found = reproduce(
        figures,
        folder,
        full=full,
        redo=redo,
        changes=changes,
        console=console,
        stop=Stop(lambda sentence: say(console, sentence)),
        engine=engine_of(engine, workers, scheduler),
        cache=cache_of(cache),
    )
    _report(console, found, str(folder))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def as_markdown(known: dict[str, PaperFigure]) -> str:
    """The table of the docs, topic by topic."""
    lines = []
    for topic, title in TOPICS.items():
        lines += [f"### {title}", "", "| name | from | what it shows |", "|---|---|---|"]
        lines += [
            f"| `{figure.name}` | {figure.source} | {figure.says()} |"
            for figure in known.values()
            if figure.topic == topic
        ]
        lines.append("")
    return "\n".join(lines).strip()


def _list(console: Console, known: dict[str, PaperFigure], markdown: bool) -> None:
    if markdown:
        typer.echo(as_markdown(known))
        return
    for topic, title in TOPICS.items():
        lines = [
            (
                figure.name,
                " ".join(filter(None, (figure.paper, figure.number))),
                *(spoken(seconds) for seconds in figure.seconds),
            )
            for figure in known.values()
            if figure.topic == topic
        ]
        show(console, Sheet(title, ("name", "from", "fast", "full"), list(lines), wrap=True))
    total = (spoken(sum(expected(known.values(), full))) for full in (False, True))
    say(
        console, "{} figures; all of them take about {}, with --full {}.".format(len(known), *total)
    )


def _say_unused(
    console: Console, figures: list[PaperFigure], full: bool, changes: dict[str, Any]
) -> None:
    """Options that none of the figures reads."""
    for name in changes:
        if not any(hasattr(settings(figure, full, {}), name) for figure in figures):
            say(console, f"Note: none of these figures reads --{name}.")


def _report(console: Console, found: Reproduced, folder: str) -> None:
    """The verdicts of all figures, and what is not finished."""
    lines = [
        (one.figure.name, verdict.statement, verdict.paper, verdict.measured, verdict.outcome)
        for one in found.done
        for verdict in one.verdicts
    ]
    if lines:
        columns = ("figure", "statement", "paper says", "measured", "verdict")
        show(console, Sheet("", columns, list(lines), wrap=True))
    for one in found.done:
        if one.state != FINISHED:
            say(console, f"{one.figure.name}: {_state(one)}")
    counted = ", ".join(f"{number} {outcome}" for outcome, number in found.counts.items())
    finished = sum(one.state == FINISHED for one in found.done)
    say(
        console, f"{finished} of {len(found.done)} figures finished; verdicts: {counted or 'none'}."
    )
    say(console, f"In {folder}: verdicts.json, verdicts.csv, and a folder for each figure.")
    if runs_in(Path(folder)):
        say(console, f"To look at: {of_folder(Path(folder))}")


def _state(one: Done) -> str:
    sentences = (f"{one.state}.", one.sentence, HELP.get(one.state, ""))
    return " ".join(sentence for sentence in sentences if sentence)
