"""A folder of runs, such as `reproduce` leaves: one page with every figure and every verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.figures import figures
from attnscope.report.markup import Markup, tag
from attnscope.report.page import Attempt, opening_of
from attnscope.report.provenance import left_out
from attnscope.report.run import FORMS, Run, is_run, read
from attnscope.report.shell import whole
from attnscope.report.summary import section, summary
from attnscope.report.tables import verdict_table
from attnscope.studies import Verdict
from attnscope.validation import parsed

LARGEST = 250_000
"""Characters of a figure on a page of many; larger ones are shown as pictures of dots."""
HOLDS = {"holds": True, "does not hold": False}


def runs_in(folder: Path) -> list[Path]:
    """The folders in this one that hold a run."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))


def html_of_all(folder: Path) -> str:
    """The page of all runs in a folder."""
    missing: list[str] = []
    told = _recorded(folder, missing)
    names = [str(one.get("name")) for one in told]
    places = {path.name: path for path in runs_in(folder)}
    ordered = [name for name in names if name in places]
    ordered += [name for name in places if name not in names]
    known = dict(zip(names, told, strict=True))
    for name, one in known.items():
        if one.get("state") not in ("finished", None):
            missing.append(f"{name}: {one['state']}. {one.get('sentence') or ''}".strip())
    verdicts, parts = list[Verdict](), list[Markup]()
    for name in ordered:
        drawn = [path.name for path in places[name].iterdir() if path.suffix[1:] in FORMS]
        run = read(places[name], drawn)
        mine = _verdicts(known.get(name, {}), run)
        verdicts += [one._replace(statement=f"{name}: {one.statement}") for one in mine]
        parts.append(_part(name, run, mine))
    counts = Counter(verdict.outcome for verdict in verdicts)
    words = [
        f"{len(ordered)} figure{'s' * (len(ordered) != 1)}, each computed anew and set beside what"
        " its paper says.",
        "Every verdict is decided by the rows of its own run, and says why it holds, does not hold,"
        " or cannot be told.",
    ]
    numbers = [Number(name, str(count), Standing.COUNTED) for name, count in counts.items()]
    opening = Opening("What the papers say, and what was found", words, numbers)
    table = section("All verdicts", verdict_table(verdicts, "verdicts")) if verdicts else None
    body = [summary(opening, missing, []), *([table] if table else []), *parts]
    return whole(opening.title, body)


def _recorded(folder: Path, missing: list[str]) -> list[Mapping[str, Any]]:
    """What verdicts.json says of every figure."""
    from attnscope.studies.reproduce import RECORD  # brings every study: a second and more

    path = folder / RECORD
    if not path.is_file():
        missing.append(f"There is no {RECORD}: figures are those of the runs that were found.")
        return []
    try:
        held = parsed(path.read_text(encoding="utf-8"))
        told = held["figures"] if isinstance(held, dict) else held
        return [one for one in told if isinstance(one, dict)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        missing.append(f"{RECORD} cannot be read ({error}).")
        return []


def _verdicts(told: Mapping[str, Any], run: Run) -> Sequence[Verdict]:
    """Those of the run's own rows; what was recorded where they cannot be read."""
    if run.table is not None and len(run.table):
        return run.table.verdicts()
    told_of = [one for one in told.get("verdicts", []) if isinstance(one, dict)]
    return [
        Verdict(
            str(one.get("statement")),
            str(one.get("paper")),
            str(one.get("measured")),
            HOLDS.get(str(one.get("verdict"))),
            str(one.get("why")),
        )
        for one in told_of
    ]


def _part(name: str, run: Run, verdicts: Sequence[Verdict]) -> Markup:
    attempt = Attempt(list(run.missing))
    opening, missing = opening_of(run, attempt), attempt.missing
    run.figures = {
        file: content for file, content in run.figures.items() if _fits(file, content, run.figures)
    }
    drawn: list[Markup] = []
    drawn = attempt("The figures", lambda: figures(run, (), f"{name}-", missing), drawn)
    notes = [*missing, *left_out(run)]
    return section(
        opening.title,
        [tag("p", sentence) for sentence in opening.words],
        drawn,
        verdict_table(verdicts, f"{name}-verdicts") if verdicts else None,
        tag("ul", [tag("li", note) for note in notes], class_="note") if notes else None,
    )


def _fits(file: str, content: bytes, files: Mapping[str, bytes]) -> bool:
    """Whether this is the form in which a figure is shown: dots only where the vector is large."""
    stem, _, form = file.rpartition(".")
    if form == "svg":
        return len(content) <= LARGEST or f"{stem}.png" not in files
    return len(files.get(f"{stem}.svg", b"")) > LARGEST or f"{stem}.svg" not in files
