"""What a run of `attack` says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.studies.attack.rows import CurveBoundRow, CurveRow, FiniteRow, SplitRow, WorstRow
from attnscope.studies.study import Sheet

PAIR = ("", "value")


def worst_sheet(row: WorstRow) -> Sheet:
    """The worst input found, and the room that is left below the bound."""
    norms = np.linalg.norm(row.tokens, axis=-1)
    upper = "none known" if row.bound is None else f"{row.bound:.6g} ({row.bound_name})"
    return Sheet(
        f"{row.target}: worst input found",
        PAIR,
        [
            ("local constant there", f"{row.value:.6g} (proved lower bound of the largest)"),
            ("proved upper bound", upper),
            ("ratio", "" if row.ratio is None else f"{row.ratio:.4g}"),
            ("began at", row.start),
            ("tokens", f"{row.n} of norm {norms.min():.4g} to {norms.max():.4g}"),
            ("masses", f"{row.weights.min():.3g} to {row.weights.max():.3g}"),
        ],
    )


def split_sheets(row: SplitRow, attacks: Sequence[FiniteRow]) -> list[Sheet]:
    """The law, and the finite attacks at growing budgets."""
    pays = "" if row.split > row.move else ": moving is at least as strong"
    lines: list[tuple[str, ...]] = [
        ("moving tokens", f"{row.move:.6g}"),
        ("halves apart", f"{row.split:.6g} (token {row.token})"),
        ("gain of splitting", f"{row.gain:.6g}{pays}"),
    ]
    made = [Sheet(f"{row.target}: mass splitting, the exact law", PAIR, lines)]
    moving, splitting = ([one for one in attacks if one.kind == kind] for kind in ("move", "split"))
    if attacks:
        pairs: list[tuple[str, ...]] = [
            (f"{one.eps:.4g}", f"{one.ratio:.6g}", f"{other.ratio:.6g}")
            for one, other in zip(moving, splitting, strict=True)
        ]
        title = "finite attacks: W_2 of the outputs per W_2 of the inputs"
        made.append(Sheet(title, ("budget", "moving", "splitting"), pairs))
    return made


def curve_sheet(rows: Sequence[CurveRow], bounds: Sequence[CurveBoundRow]) -> Sheet:
    """What was found at each point, below the tightest bound."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        here = [one for one in bounds if (one.n, one.radius) == (row.n, row.radius)]
        upper = min(here, key=lambda one: one.value)
        found = f"{row.found:.5g}"
        lines.append((str(row.n), f"{row.radius:.4g}", found, f"{upper.value:.5g} ({upper.name})"))
    return Sheet(
        "L(n, R): largest constant found (lower bound) and tightest proved upper bound",
        ("n", "R", "found", "upper bound"),
        lines,
    )
