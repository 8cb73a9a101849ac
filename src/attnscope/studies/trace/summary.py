"""What a trace says: two tables, the papers' claims as verdicts, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnscope.studies.study import Sheet, Verdict
from attnscope.studies.table import Table
from attnscope.studies.trace.rows import Absent, Reading, State, Step


def sheets(table: Table) -> list[Sheet]:
    """Medians over the sequences, depth by depth and layer by layer."""
    made = [_shapes(table)]
    if table["steps"]:
        made.append(_against_theory(table["steps"]))
    if table["attention"]:
        made.append(_readings(table["attention"]))
    return made


def _shapes(table: Table) -> Sheet:
    states: Sequence[State] = table.rows
    n, count = states[0].n, len({row.sequence for row in states})
    columns = ("depth", "radius", "aniso", "rank", "cosine", "clusters", "W2", "Bures", "moved")
    lines = []
    for depth in sorted({row.depth for row in states}):
        here = [row for row in states if row.depth == depth]
        lines.append(
            (
                str(depth),
                f"{_median([row.radius for row in here]):.3g}",
                f"{_median([row.anisotropy for row in here]):.3f}",
                f"{_median([row.effective_rank for row in here]):.1f}",
                f"{_median([row.mean_cosine for row in here]):.3f}",
                f"{_median([row.clusters for row in here]):.0f}",
                *(_distance(here, name) for name in ("w2", "bures", "moved")),
            )
        )
    return Sheet(
        f"{Path(table.config.model).name}: {n} tokens through depth, {count}"
        f" sequence{'s' * (count > 1)}",
        columns,
        lines,
        "depth k: before block k, the last one behind the last block. aniso: largest eigenvalue of"
        " the covariance over its trace; rank: exponential of the entropy of its spectrum, at most"
        f" {min(n - 1, states[0].dim)}; cosine: mean over pairs of tokens; clusters: by hops of at"
        f" most {table.config.gap:g} RMS distances; W2, Bures, moved: from the depth before, of"
        " clouds, of fitted Gaussians, and token by token.",
    )


def _against_theory(steps: Sequence[Step]) -> Sheet:
    columns = (
        *("layer", "mean", "uniform", "cov", "token", "uniform", "together"),
        *("aniso", "after", "theory"),
    )
    names = (
        *("mean_error", "mean_error_uniform", "cov_error", "token_error"),
        *("token_error_uniform", "token_error_together"),
        *("anisotropy_before", "anisotropy_after", "anisotropy_predicted"),
    )
    lines = []
    for layer in sorted({row.layer for row in steps}):
        here = [row for row in steps if row.layer == layer]
        values = [_median([getattr(row, name) for row in here]) for name in names]
        errors, shapes = values[:6], values[6:]
        lines.append((str(layer), *(f"{v:.3g}" for v in errors), *(f"{v:.3f}" for v in shapes)))
    return Sheet(
        "The attention step against the Gaussian theory: errors over the motion",
        columns,
        lines,
        "1 is what predicting no motion gives. mean, cov, token: the closed form's errors of the"
        " mean, the covariance and each token; uniform: every token reads all alike, of the mean"
        " and of each token; together: every token moves as their mean did. aniso, after, theory:"
        " anisotropy before the step, after it, and as predicted.",
    )


def _readings(readings: Sequence[Reading]) -> Sheet:
    lines: list[tuple[str, ...]] = [
        (
            str(row.layer),
            f"{row.sink}",
            repr(row.text)[:18],
            f"{row.share:.2f}",
            f"{row.heads_there:.2f}",
            f"{row.entropy:.2f}",
            f"{row.uniform:.2f}",
            f"{row.largest_score:.3g}",
        )
        for row in readings
        if row.sequence == readings[0].sequence
    ]
    return Sheet(
        "What is read, first sequence",
        ("layer", "sink", "token", "share", "heads", "entropy", "uniform", "score"),
        lines,
        "sink: the token read most; share: its part of all attention; heads: the part of them that"
        " read it most; uniform: the entropy of reading all alike; score: the largest one.",
    )


def verdicts(table: Table) -> list[Verdict]:
    """What the papers hope of trained networks, and what these rows say."""
    steps: Sequence[Step] = table["steps"]
    if not steps:
        return []
    total = len(steps)
    closer = sum(row.cov_error < 1 for row in steps)
    signs = [
        np.sign(row.anisotropy_after - row.anisotropy_before)
        == np.sign(row.anisotropy_predicted - row.anisotropy_before)
        for row in steps
    ]
    better = sum(row.token_error < row.token_error_uniform for row in steps)
    errors = [row.cov_error for row in steps]
    paper = "Gaussian analysis captures how anisotropy evolves [castin25]"
    return [
        Verdict(
            "the Gaussian step predicts the covariance better than no motion, in every layer",
            paper,
            f"{closer} of {total} steps, errors {min(errors):.2g} to {max(errors):.2g}",
            closer == total,
            "covariance of the stream after the attention; error 1 is no motion",
        ),
        Verdict(
            "it says in every layer whether anisotropy grows or falls",
            paper,
            f"{sum(signs)} of {total} steps",
            all(signs),
            "largest eigenvalue over trace, before and after the attention",
        ),
        Verdict(
            "it moves tokens better than attention that reads all alike, in every layer",
            "the field is affine, V(m + SAx)",
            f"{better} of {total} steps",
            better == total,
            "RMS over tokens; reading all alike is the same theory with A = 0",
        ),
    ]


def left_out(table: Table) -> list[str]:
    """Layers without a prediction or a reading, by their reason."""
    made: dict[tuple[str, str], list[int]] = {}
    absent: Sequence[Absent] = table["absent"]
    for row in absent:
        layers = made.setdefault((row.what, row.why), [])
        if row.layer not in layers:
            layers.append(row.layer)
    return [
        f"no {what} for layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}: {why}."
        for (what, why), layers in made.items()
    ]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _distance(rows: Sequence[State], name: str) -> str:
    values = [getattr(row, name) for row in rows]
    return "" if None in values else f"{_median(values):.3g}"
