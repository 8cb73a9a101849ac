"""What a run of `measure` is asked, cut into, and made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from attnscope.studies.cell import Cell

LENGTHS = tuple(range(2, 100, 2))
"""The lengths of the paper's figures [castin24, Fig. 3]."""


class Row(NamedTuple):
    """One measurement. `head` is None for the whole layer; `radius` is the RMS token norm at the
    attention input.
    """

    model: str
    layer: int
    head: int | None
    part: str
    n: int
    sequence: int
    start: int
    radius: float
    largest_norm: float
    lower: float
    upper: float | None
    residual: float
    pairs: int
    converged: bool
    released_estimator: float | None
    text: str = ""


class BoundRow(NamedTuple):
    """A proved bound on the part of a layer, at the first sequence of the longest length."""

    layer: int
    value: float
    side: str
    kind: str
    name: str
    source: str
    assumes: str
    model: str = ""
    part: str = ""
    n: int = 0
    text: str = ""


@dataclass(frozen=True)
class MeasureConfig:
    """What to measure.

    Args:
        model: A name that `attnscope.load` knows, or that of a model in the workbench.
        text: A named text, a file, or the name of ids in the workbench.
        layers: Layer numbers; None for all.
        heads: "none", "longest" (each head at the longest length), "all", or head numbers, which
            are measured at every length.
        samples: Sequences per length.
        tol: Relative width of every bracket or, without brackets, accuracy of every estimate.
        failure_probability: All upper bounds of the run hold together but with this probability;
            None for no upper bounds: what is left are lower bounds whose accuracy is estimated.
        released: Also report $\\sqrt{\\|J^T f(X)\\|}$.
        bounds: Also evaluate every proved bound at the longest length.
        special_tokens: Whether each sequence begins and ends as the tokenizer would make it; they
            count as tokens of its length.
        whole: Several texts, each measured once at its own length; otherwise the first tokens of
            each that has as many as the length.
        shard: Sequences per cell; None for all of one length.
        fit_from: The shortest length that the fit of the growth uses; no row depends on it.
    """

    model: str = "minilm"
    text: str = "alice"
    layers: tuple[int, ...] | None = None
    heads: str | tuple[int, ...] = "longest"
    lengths: tuple[int, ...] = LENGTHS
    samples: int = 10
    part: str = "attention"
    tol: float = 1e-3
    failure_probability: float | None = 1e-6
    released: bool = False
    bounds: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    special_tokens: bool = False
    whole: bool = False
    shard: int | None = None
    fit_from: int = 1


@dataclass(frozen=True, kw_only=True)
class Place(Cell):
    """Where to measure: the sequences [first, first + samples) of length n of a text, in these
    layers. `tokens` is the hash of all ids of the text, so that it also stands for the tokenizer.
    """

    model: str
    weights: str
    device: str
    dtype: str
    text: str
    tokens: str
    part: str
    layers: tuple[int, ...]
    n: int
    first: int
    samples: int
    frame: tuple[tuple[int, ...], ...] = ((), ())
    """Special tokens before and after each sequence."""
    members: tuple[int, ...] = ()
    """The numbers of these sequences among several texts, each of them its own."""

    @property
    def group(self) -> str:
        return self.model


@dataclass(frozen=True, kw_only=True)
class Constants(Place):
    """The constants of all layers there, and of these heads: one pass through the network serves
    them all.
    """

    heads: tuple[int, ...]
    tol: float
    certified: bool
    released: bool
    seed: int
    directions: bool
    """Whether to say which tokens carry the top direction of each layer, at the first sequence."""
    before: tuple[int, ...] = ()
    """Lengths that are measured before n in this cell, each search near what the last one found."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Every length of the cell."""
        return (*self.before, self.n)

    @property
    def calls(self) -> int:
        """Stacks of problems, which share the failure probability of the cell: each layer, and its
        heads.
        """
        return len(self.layers) * (2 if self.heads else 1) * len(self.rungs)


@dataclass(frozen=True, kw_only=True)
class Theorems(Place):
    """Every proved bound there."""
