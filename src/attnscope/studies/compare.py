"""Several runs of one study side by side: models, or checkpoints of one model, in one table and one
figure. Runs that cannot be compared say why.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.studies.drawing import COLOURS, new_figure, safe
from attnscope.studies.driver import read
from attnscope.studies.store import Store
from attnscope.studies.study import Sheet
from attnscope.studies.table import Table
from attnscope.validation import parsed

MOST = 6
"""Runs whose numbers fit side by side into 80 columns."""
LETTERS = "ABCDEF"
LONGEST = 60
"""Letters of a folder's or a model's name in the legend."""


class Value(NamedTuple):
    """A number, or where it is known to lie."""

    low: float
    high: float | None = None

    def apart(self, other: Value) -> bool:
        """Whether two brackets have nothing in common; numbers without brackets never say so."""
        if self.high is None or other.high is None:
            return False
        return self.high < other.low or other.high < self.low


class Series(NamedTuple):
    """One quantity of a run, by layer, depth or length."""

    title: str
    by: str
    values: Mapping[int, Value]


class Loaded(NamedTuple):
    folder: str
    table: Table


class Comparison(NamedTuple):
    """Runs with their common quantities: for each, what every run has."""

    runs: list[Loaded]
    quantities: list[list[Series]]

    def sheets(self) -> list[Sheet]:
        """A table for each quantity, a column for each run; a legend first."""
        names: list[tuple[str, ...]] = [
            (letter, _short(run.table.config.model), _short(run.folder))
            for letter, run in zip(LETTERS, self.runs, strict=False)
        ]
        return [
            Sheet("The runs", ("", "model", "folder"), names),
            *(_sheet(series) for series in self.quantities),
        ]

    def figure(self) -> Any:
        """One panel for each quantity, one line for each run."""
        across = min(3, len(self.quantities))
        down = -(-len(self.quantities) // across)
        figure = new_figure(1.0 + 3.4 * across, 0.9 + 2.7 * down)
        axes = figure.subplots(down, across, squeeze=False)
        for ax, series in zip(axes.flat, self.quantities, strict=False):
            for number, (run, one) in enumerate(zip(self.runs, series, strict=True)):
                places = sorted(one.values)
                name = f"{LETTERS[number]}: {safe(Path(run.table.config.model).name, 32)}"
                values, form = [one.values[x].low for x in places], "os^Dvp"[number]
                colour = COLOURS[number]
                ax.plot(places, values, f"{form}-", color=colour, markersize=4, label=name)
            ax.set(title=series[0].title, xlabel=series[0].by)
            ax.xaxis.get_major_locator().set_params(integer=True)
        for ax in axes.flat[len(self.quantities) :]:
            ax.set_visible(False)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
        return figure

    def lines(self) -> list[dict[str, Any]]:
        """Every number with its run, for a file."""
        return [
            {
                "quantity": one.title,
                "by": one.by,
                "at": at,
                "run": run.folder,
                "model": run.table.config.model,
                "lower": value.low,
                "upper": value.high,
            }
            for series in self.quantities
            for run, one in zip(self.runs, series, strict=True)
            for at, value in sorted(one.values.items())
        ]


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Put runs side by side.

    Args:
        folders: Where they are; the first is what the others are compared with.

    Raises:
        ValueError: They cannot be compared; the sentence says why.
    """
    names = [str(folder) for folder in folders]
    if not 2 <= len(names) <= MOST:
        raise ValueError(f"a comparison takes 2 to {MOST} runs, got {len(names)}.")
    if len({Path(name).resolve() for name in names}) < len(names):
        raise ValueError("a run was given twice: compare it with another one.")
    runs = [_loaded(name) for name in names]
    kinds = [run.table.study.name for run in runs]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"{names[0]!r} is a run of {kinds[0]}, and"
            f" {next(n for n, k in zip(names, kinds, strict=True) if k != kinds[0])!r} is not: only"
            " runs of one study can be compared."
        )
    if kinds[0] not in QUANTITIES:
        raise ValueError(
            f"runs of {', '.join(QUANTITIES)} can be compared, got runs of {kinds[0]}."
        )
    alike, made = QUANTITIES[kinds[0]]
    for field, said in alike.items():
        _check_alike(runs, field, said)
    quantities = [list(series) for series in zip(*made(runs), strict=True)]
    return Comparison(runs, [some for some in quantities if any(one.values for one in some)])


def _loaded(name: str) -> Loaded:
    from attnscope.studies import named

    with Store(Path(name)) as store:
        study = named(store.identity.study)
        if study is None:
            raise ValueError(f"{name!r} holds a run of {store.identity.study!r}, which is unknown.")
        table = read(store, study, study.read_config(parsed(store.identity.config)))
    if not len(table):
        raise ValueError(f"{name!r} holds no rows yet: let the run go on first.")
    return Loaded(name, table)


def _check_alike(runs: Sequence[Loaded], field: str, said: str) -> None:
    """Refuse runs that answer different questions."""
    first, *others = (getattr(run.table.config, field) for run in runs)
    for run, value in zip(runs[1:], others, strict=True):
        if value != first:
            raise ValueError(
                f"{runs[0].folder!r} and {run.folder!r} cannot be compared: {said} is {first!r} in"
                f" one and {value!r} in the other."
            )


def _of_measure(runs: Sequence[Loaded]) -> list[list[Series]]:
    lengths = [{row.n for row in run.table if row.head is None} for run in runs]
    common = set.intersection(*lengths)
    if not common:
        told = " and ".join(_numbers(some) for some in lengths[:2])
        raise ValueError(f"these runs have no length in common ({told}), so nothing compares.")
    n = max(common)
    made = []
    for run in runs:
        rows = [row for row in run.table if row.head is None and row.n == n]
        made.append([Series(f"sigma at n = {n}", "layer", _brackets(rows, lambda r: r.layer))])
    return made


def _of_span(runs: Sequence[Loaded]) -> list[list[Series]]:
    return [
        [Series("sigma of the span", "n", _brackets(run.table.rows, lambda row: row.n))]
        for run in runs
    ]


def _of_trace(runs: Sequence[Loaded]) -> list[list[Series]]:
    counts = [{row.n for row in run.table} for run in runs]
    if len(set.union(*counts)) > 1:
        told = " and ".join(_numbers(some) for some in counts[:2])
        raise ValueError(f"these runs follow different numbers of tokens ({told}).")
    columns = {
        "radius": "RMS norm",
        "anisotropy": "anisotropy",
        "effective_rank": "effective rank",
        "mean_cosine": "mean cosine",
        "clusters": "clusters",
    }
    return [
        [
            Series(said, "depth", _medians(run.table.rows, lambda row: row.depth, name))
            for name, said in columns.items()
        ]
        + [
            Series(
                "error of the theory's covariance",
                "layer",
                _medians(run.table["steps"], lambda row: row.layer, "cov_error"),
            )
        ]
        for run in runs
    ]


Quantities = Callable[[Sequence[Loaded]], list[list[Series]]]
QUANTITIES: dict[str, tuple[dict[str, str], Quantities]] = {
    "measure": ({"text": "the text", "part": "the part"}, _of_measure),
    "span": (
        {"text": "the text", "start": "the start of the span", "stop": "its stop"},
        _of_span,
    ),
    "trace": ({"text": "the text", "gap": "the gap"}, _of_trace),
}
"""For each study what runs must share, and what is compared."""


def _brackets(rows: Iterable[Any], by: Callable[[Any], int]) -> dict[int, Value]:
    """Medians over the sequences of lower and upper bounds."""
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(row)
    made = {}
    for place, here in found.items():
        uppers = [row.upper for row in here]
        high = None if None in uppers else statistics.median(uppers)
        made[place] = Value(statistics.median(row.lower for row in here), high)
    return made


def _medians(rows: Iterable[Any], by: Callable[[Any], int], name: str) -> dict[int, Value]:
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(float(getattr(row, name)))
    return {place: Value(statistics.median(values)) for place, values in found.items()}


def _sheet(series: Sequence[Series]) -> Sheet:
    """One quantity; of two runs also their ratio, marked where their brackets are apart."""
    two = len(series) == 2
    places = sorted(set().union(*(one.values for one in series)))
    lines = []
    for place in places:
        values = [one.values.get(place) for one in series]
        entries = ["" if value is None else f"{value.low:.4g}" for value in values]
        if two:
            entries += _ratio(values[0], values[1])
        lines.append((str(place), *entries))
    bracketed = any(value.high is not None for one in series for value in one.values.values())
    return Sheet(
        series[0].title,
        (series[0].by, *LETTERS[: len(series)], *(["B/A", ""] if two else [])),
        lines,
        "Medians over the sequences of lower bounds; !: the brackets are apart." * bracketed,
    )


def _ratio(a: Value | None, b: Value | None) -> list[str]:
    if a is None or b is None:
        return ["", ""]
    return [f"{b.low / a.low:.3g}" if a.low else "", "!" * a.apart(b)]


def _numbers(found: set[int]) -> str:
    shown = sorted(found)
    return ", ".join(map(str, shown[:4])) + (" ..." if len(shown) > 4 else "")


def _short(name: str) -> str:
    text = str(name)
    longest = LONGEST // 2
    return text if len(text) <= longest else "..." + text[3 - longest :]
