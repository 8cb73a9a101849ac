"""The results of the benchmarks as tables: on the terminal and in the README."""

from __future__ import annotations

from typing import Any

COLUMNS = ("what", "measured", "must", "stretch")


def rows(found: dict[str, Any]) -> list[tuple[str, str, str, str, bool]]:
    """What was measured, the number, what must be reached, what would be better, and whether the
    must is reached.

    A ratio counts how many times faster than the baseline it is and must be at least the bar; a
    value must be at most the bar.
    """
    made = []
    for what, row in found.items():
        value, ceiling = row.get("ratio", row.get("value")), "ratio" not in row
        must = row.get("at most" if ceiling else "must")
        good = must is None or (value <= must if ceiling else value >= must)
        sign, unit = ("<= ", "") if ceiling else (">= ", "x")
        bars = ["" if bar is None else f"{sign}{bar:g}{unit}" for bar in (must, row.get("stretch"))]
        made.append((what, f"{value:.3g}{unit}", bars[0], bars[1], good))
    return made


def as_markdown(results: dict[str, dict[str, Any]]) -> str:
    """The README's table of everything in results.json."""
    lines = [
        COLUMNS,
        ("---",) * len(COLUMNS),
        *(row[:4] for found in results.values() for row in rows(found)),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
