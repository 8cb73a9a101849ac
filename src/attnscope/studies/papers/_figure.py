"""What the papers' figures share: where a figure is from, and how its verdicts are told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.stats
import torch

from attnscope.studies.study import Sheet, Study, Verdict
from attnscope.studies.table import Table

CONFIDENCE = 0.95
TOPICS = {
    "smoothness": "How smooth is attention",
    "dynamics": "Dynamics of deep transformers",
    "measures": "Attention between measures",
    "certificates": "Certificates",
    "talk": "The talk",
}
VERDICT_COLUMNS = ("statement", "paper", "measured", "verdict", "why")


class Missing(ValueError):
    """A model or a data set that a figure needs is not here; others run without it."""


class PaperFigure(Study):
    """A study that draws one figure of a paper and says whether its statement holds."""

    paper: ClassVar[str]
    """A key of docs/references.bib."""
    figure: ClassVar[str]
    """What the figure shows, in words."""
    number: ClassVar[str | None] = None
    """Its number in the paper, where that is known."""
    topic: ClassVar[str]
    """One of TOPICS."""
    seconds: ClassVar[tuple[float, float]]
    """What one core of 2020 needs for `fast` and for the paper's settings, roughly."""

    shares: ClassVar[str | None] = None
    """A name for the cells that this figure shares with others, which one process runs once."""

    @property
    def source(self) -> str:
        """The paper and the number of the figure there."""
        return f"{self.paper}, {self.number or 'number not known'}"

    @classmethod
    def says(cls) -> str:
        """What the figure is about, in one sentence without formulas: from its docstring."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())

    def summary(self, table: Table) -> list[Sheet]:
        """The verdicts as a table."""
        lines = [verdict_line(verdict) for verdict in self.verdicts(table)]
        return [Sheet(f"{self.figure} [{self.source}]", VERDICT_COLUMNS, lines)]

    def files(self, table: Table) -> dict[str, bytes]:
        """The verdicts for other programs."""
        made = [told(verdict) for verdict in self.verdicts(table)]
        return {"verdicts.json": (json.dumps(made, indent=1) + "\n").encode()}


def verdict_line(verdict: Verdict) -> tuple[str, ...]:
    """A verdict under VERDICT_COLUMNS."""
    return verdict.statement, verdict.paper, verdict.measured, verdict.outcome, verdict.why


def told(verdict: Verdict) -> dict[str, str]:
    """A verdict by the names of its columns."""
    return dict(zip(VERDICT_COLUMNS, verdict_line(verdict), strict=True))


def every(told: Iterable[bool | None]) -> bool | None:
    """Whether all hold: False if one does not, else None if one cannot be told or none is there."""
    found = list(told)
    if False in found:
        return False
    return None if None in found or not found else True


def falls(value: float, before: float, small: float) -> bool | None:
    """Whether something goes to zero, from its value at the end and a good while before: below
    `small` it does, while it still falls it cannot be told, and else it does not.
    """
    if value <= small:
        return True
    return None if value < 0.7 * before else False


def share(count: int, total: int) -> str:
    """A share of independent draws with its Clopper-Pearson interval."""
    if total == 0:
        return "no draw"
    low, high = scipy.stats.binomtest(count, total).proportion_ci(CONFIDENCE, "exact")
    return f"{count} of {total} ({low:.2f} to {high:.2f})"


def between(values: Iterable[float], form: str = ".2e") -> str:
    """The range of a number over what is no random sample."""
    found = sorted(values)
    return f"{found[0]:{form}} to {found[-1]:{form}}" if found else "nothing"


def drawn(seed: int, *names: object) -> torch.Generator:
    """A generator for this seed and these names: rows do not depend on what was drawn before."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


class Slope(NamedTuple):
    """An exponent with its 95 % interval, which covers the scatter about the line."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}, {self.high:.2f})"

    def sign(self) -> bool | None:
        """Whether it is below zero: None while the interval holds zero."""
        return True if self.high < 0 else False if self.low > 0 else None


def slope(sizes: Sequence[int], values: Sequence[float]) -> Slope:
    """The exponent of a power law, by least squares on logarithms; it needs three points."""
    if len(sizes) < 3 or len(set(sizes)) < 2:
        return Slope(float("nan"), float("-inf"), float("inf"))
    fit = scipy.stats.linregress(np.log(sizes), np.log(np.maximum(values, 1e-300)))
    width = float(fit.stderr * scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(sizes) - 2))
    return Slope(float(fit.slope), float(fit.slope) - width, float(fit.slope) + width)
