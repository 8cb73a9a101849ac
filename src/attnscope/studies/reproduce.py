"""`reproduce`: several figures of the papers in one folder, each a run of its own, and what they
all say.

    FOLDER/verdicts.json      every figure: how it ended, its files and its verdicts
    FOLDER/verdicts.csv       one line per verdict
    FOLDER/NAME/              the run of one figure: rows, pictures, run.json
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from attnscope.files import write_atomically
from attnscope.studies.cache import Cache
from attnscope.studies.driver import Outcome, run
from attnscope.studies.engines import Engine
from attnscope.studies.export import as_csv
from attnscope.studies.papers import Missing, PaperFigure, told
from attnscope.studies.progress import Bar, Meter, Stretch, shown
from attnscope.studies.stop import Stop
from attnscope.studies.store import Damaged, OtherResults, StoreError, check_folder
from attnscope.studies.study import Verdict
from attnscope.studies.workbench import Workbench
from attnscope.validation import parsed

RECORD = "verdicts.json"
TABLE = "verdicts.csv"
DRAWING = 3.0
"""Seconds of a figure that computes nothing."""
AGAIN = "the same command again goes on"
FINISHED, STOPPED, MISSING, KEPT = "finished", "stopped", "missing", "kept"
DAMAGED, FAILED, WAITING = "damaged", "failed", "waiting"
"""How a figure ended. Kept are results of another version or of other settings, which are replaced
on request only; waiting figures were not begun.
"""


class Done(NamedTuple):
    """What became of one figure; `sentence` says why it is not finished."""

    figure: PaperFigure
    state: str
    sentence: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        figure = self.figure
        return {
            "name": figure.name,
            "title": figure.figure,
            "paper": figure.paper,
            "number": figure.number,
            "topic": figure.topic,
            "about": figure.says(),
            "state": self.state,
            "sentence": self.sentence,
            "seconds": round(self.seconds, 3),
            "files": list(self.files),
            "verdicts": [told(verdict) for verdict in self.verdicts],
            "remarks": list(self.remarks),
        }


class Reproduced(NamedTuple):
    """How all of it ended."""

    done: list[Done]
    exit_code: int
    """0; 1 when a figure failed; 128 + the signal that ended it early."""

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.done)


def chosen(names: Sequence[str], known: Mapping[str, PaperFigure]) -> list[PaperFigure]:
    """The figures of these names, each once; "all" for every one. A name that is none is refused
    with the nearest one.
    """
    for name in names:
        if name != "all" and name not in known:
            near = difflib.get_close_matches(name, [*known, "all"], n=1, cutoff=0.0)
            raise ValueError(
                f"there is no figure {name!r}: did you mean {near[0]!r}? `attnscope reproduce list`"
                " shows them all."
            )
    return [known[name] for name in (known if "all" in names else dict.fromkeys(names))]


def settings(figure: PaperFigure, full: bool, changes: Mapping[str, Any]) -> Any:
    """The config of a figure, with those changes that it has a field for."""
    config = figure.Config() if full else figure.fast
    fields = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(
        config, **{name: value for name, value in changes.items() if name in fields}
    )


def expected(figures: Iterable[PaperFigure], full: bool) -> list[float]:
    """How many seconds one core needs for each, roughly: figures that share their rows with one
    before them only draw.
    """
    seen, made = set[str](), list[float]()
    for figure in figures:
        shared = figure.shares is not None and figure.shares in seen
        made.append(DRAWING if shared else figure.seconds[full])
        if figure.shares is not None:
            seen.add(figure.shares)
    return made


def reproduce(
    figures: Sequence[PaperFigure],
    folder: Path,
    *,
    full: bool = False,
    redo: bool = False,
    changes: Mapping[str, Any] | None = None,
    workbench: Workbench | None = None,
    console: Console | None = None,
    stop: Stop | None = None,
    engine: Engine | None = None,
    cache: Cache | None = None,
) -> Reproduced:
    """Run these figures one after the other, each in a folder of its own; the same call again goes
    on where it stopped and does not touch what is finished.

    Args:
        full: The papers' settings instead of the fast ones.
        redo: Replace results of another version, of other settings, or damaged ones, which are
            kept otherwise.
        changes: Fields of the configs, such as `text`, for every figure that has them.
        engine: Where cells run; in this process if left out.
        cache: Rows of earlier runs in other folders.

    Returns:
        What became of every figure: one that fails, or whose data is missing, stops no other.
    """
    check_folder(folder)
    workbench = Workbench() if workbench is None else workbench
    stop = Stop() if stop is None else stop
    before, done = _recorded(folder), [Done(figure, WAITING) for figure in figures]
    start, lengths = 0.0, expected(figures, full)
    with stop.listening(), shown(console, sum(lengths), counted=False) as bar:
        for place, figure in enumerate(figures):
            if stop.asked:
                break
            config = settings(figure, full, changes or {})
            length = lengths[place]
            meter = _Meter(bar, start, length, f"{figure.name} ({place + 1} of {len(figures)})")
            how = {"workbench": workbench, "stop": stop, "engine": engine, "cache": cache}
            done[place] = _one(figure, config, folder, redo, meter, before, how)
            start += length
            bar.at(start, "")
            _write(folder, done, before, full)
        _write(folder, done, before, full)
    failed = any(one.state in (FAILED, DAMAGED) for one in done)
    return Reproduced(done, stop.exit_code or int(failed))


@dataclass(frozen=True)
class _Meter:
    """The stretch of the bar that is one figure's, once it says how many cells it has."""

    bar: Bar
    start: float
    length: float
    name: str

    def __call__(self, cells: int) -> Meter:
        return Stretch(self.bar, self.start, self.length, cells, self.name)


def _one(
    figure: PaperFigure,
    config: Any,
    folder: Path,
    redo: bool,
    meter: _Meter,
    before: Mapping[str, Mapping[str, Any]],
    how: Mapping[str, Any],
) -> Done:
    """One figure, whatever happens in it."""
    meter.bar.at(meter.start, meter.name)
    place, was = folder / figure.name, before.get(figure.name, {})
    there = was.get("state") == FINISHED and all(
        (place / name).exists() for name in was.get("files", [""])
    )

    def attempt(overwrite: bool) -> Outcome:
        return run(
            figure,
            config,
            folder=place,
            overwrite=overwrite,
            meter=meter,
            **how,
            # those of a finished figure are there: what is drawn from equal rows is equal
            pictures=overwrite or not there,
        )

    try:
        try:
            outcome = attempt(False)
        except (OtherResults, Damaged):
            if not redo:
                raise
            outcome, there = attempt(True), False
        return Done(
            figure,
            FINISHED if outcome.finished else STOPPED,
            "" if outcome.finished else AGAIN,
            float(was.get("seconds", 0.0)) if there else outcome.seconds,
            tuple(was["files"] if there else outcome.files),
            tuple(outcome.table.verdicts()),
            tuple(outcome.remarks),
        )
    except Missing as error:
        return Done(figure, MISSING, str(error))
    except OtherResults as error:
        return Done(figure, KEPT, str(error))
    except Damaged as error:
        return Done(figure, DAMAGED, str(error))
    except StoreError as error:
        return Done(figure, FAILED, str(error))
    except KeyboardInterrupt:
        return Done(figure, STOPPED, AGAIN)
    except Exception as error:  # whatever one figure does, the others are still wanted
        return Done(figure, FAILED, " ".join(f"{type(error).__name__}: {error}".split()))


def counts(done: Iterable[Done]) -> dict[str, int]:
    """How many verdicts there are of each outcome."""
    return dict(Counter(verdict.outcome for one in done for verdict in one.verdicts))


def _recorded(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What the record in the folder says of each figure; a record that is no record says nothing,
    since everything in it can be read from the figures' own folders.
    """
    try:
        held = parsed((folder / RECORD).read_text(encoding="utf-8"))
        return {entry["name"]: entry for entry in held["figures"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(
    folder: Path, done: Sequence[Done], before: Mapping[str, Mapping[str, Any]], full: bool
) -> None:
    """The record of everything in the folder, figures of earlier calls included."""
    from attnscope import __version__

    entries = dict(before)
    for one in done:
        if one.state not in (WAITING, KEPT) or one.figure.name not in entries:
            entries[one.figure.name] = one.as_dict()
    lines = [
        {"figure": entry["name"], **verdict}
        for entry in entries.values()
        for verdict in entry["verdicts"]
    ]
    record = {
        "attnscope": __version__,
        "study": "reproduce",
        "settings": "full" if full else "fast",
        "finished": all(entry["state"] == FINISHED for entry in entries.values()),
        "counts": dict(Counter(line["verdict"] for line in lines)),
        "figures": list(entries.values()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RECORD, json.dumps(record, indent=1) + "\n")
    if lines:
        write_atomically(folder / TABLE, as_csv(lines))
