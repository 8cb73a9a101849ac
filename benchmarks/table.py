"""The results of the benchmarks as tables: on the terminal, in docs/benchmarks.md and README.md."""

from __future__ import annotations

from typing import Any

COLUMNS = ("what", "measured", "must", "stretch")
MATTER = (
    "pair vs P2, gpt2-random layer 6, n = 1024, causal",
    "sigma to 1e-6 vs P2, gpt2-random layer 6, n = 1024, causal",
    "the papers' figure to 1e-6 vs P2, gpt2-random layer 6",
    "the papers' figure to 1e-6 vs P2, bert-random layer 6",
    "float64 sigma with a 1e-6 bracket vs scipy svds on autograd products, n = 256",
    "all heads in one stack vs head by head, minilm layer 3, n = 128, 4 sequences",
    "peak memory of spectral_norm, n = 4096, 12 heads, d = 768, 30 pairs, in sizes of X",
    "JVP of a 6-layer Llama, d = 576, n = 4,096, vs eager attention",
    "PDE step vs SDPA, n = 100,000, d = 2, next calls of a flow",
    "attnscope --help / import torch",
)
"""The rows of the README, as far as they have been measured."""


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
    """The table of everything in results.json."""
    return _lines([COLUMNS, *(row[:4] for found in results.values() for row in rows(found))])


def those_that_matter(results: dict[str, dict[str, Any]]) -> str:
    """The README's table."""
    known = {what: row for found in results.values() for what, row in found.items()}
    chosen = {what: known[what] for what in MATTER if what in known}
    return _lines([COLUMNS[:3], *(row[:3] for row in rows(chosen))])


def _lines(table: list[tuple[str, ...]]) -> str:
    dashes = ("---",) * len(table[0])
    return "\n".join("| " + " | ".join(line) + " |" for line in [table[0], dashes, *table[1:]])
