"""Where a run comes from: versions, options with the seed, times, what was left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnscope.report.markup import Markup, tag
from attnscope.report.run import Run

PACKAGES = ("attnscope", "python", "torch", "numpy", "transformers")
LONGEST = 200


def left_out(run: Run) -> list[str]:
    """What the run itself says did not converge or was left out."""
    told = run.record.get("left_out")
    if isinstance(told, list):
        return [str(sentence) for sentence in told]
    return run.table.study.remarks(run.table) if run.table is not None and len(run.table) else []


def provenance(run: Run) -> list[Markup]:
    """Everything needed to run it again, as far as it was recorded."""
    record = run.record
    versions = [(name, record[name]) for name in PACKAGES if name in record]
    times: list[tuple[str, Any]] = []
    if "finished" in record:
        times.append(("finished", "yes" if record["finished"] else "no, it was cut short"))
    if isinstance(cells := record.get("cells"), dict):
        times.append(("cells done", f"{cells.get('done')} of {cells.get('all')}"))
    if "seconds" in record:
        times.append(("seconds", record["seconds"]))
    if record.get("failure_probability"):
        times.append(
            (
                "all probable bounds hold together but with probability",
                _short(record["failure_probability"]),
            )
        )
    options = record.get("options")
    asked = (
        [(name, _short(value)) for name, value in options.items()]
        if isinstance(options, dict)
        else []
    )
    said = left_out(run)
    return [
        tag("div", _pairs("Versions", versions), _pairs("The run", times), class_="two"),
        _pairs("Options, as they were asked for", asked),
        tag("h3", "Left out, or not converged"),
        tag("ul", [tag("li", sentence) for sentence in said])
        if said
        else tag(
            "p", "Nothing." if record.get("finished", True) else "Nothing but what was not reached."
        ),
    ]


def _pairs(heading: str, pairs: Sequence[tuple[str, Any]]) -> Markup:
    if not pairs:
        return Markup("")
    lines = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in pairs]
    return tag("div", tag("h3", heading), tag("table", tag("tbody", lines), class_="pairs"))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
