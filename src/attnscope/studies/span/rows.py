"""What a run on a span is asked, cut into, and made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from attnscope.studies.cell import Cell


class SpanRow(NamedTuple):
    """The constant of a span on one sequence. `lower` is proved up to rounding, `upper` probable.

    `product` is that of the constants of its pieces (blocks, the final norm, the head): of their
    upper bounds, and then a probable upper bound of the span's constant, or of their lower bounds
    where no upper ones were asked for, and then an estimate. `largest` is the largest of them.
    """

    model: str
    text: str
    start: str
    stop: str
    n: int
    sequence: int
    lower: float
    upper: float | None
    residual: float
    pairs: int
    converged: bool
    product: float | None
    largest: float | None
    largest_piece: str | None


class PieceRow(NamedTuple):
    """The constant of one block of the span, or of the final norm or the head behind it."""

    start: str
    stop: str
    n: int
    sequence: int
    lower: float
    upper: float | None
    residual: float
    pairs: int
    converged: bool


class ValueRow(NamedTuple):
    """One of the largest singular values of the span: a lower bound of its true value."""

    n: int
    sequence: int
    number: int
    value: float
    residual: float
    converged: bool


class Carrier(NamedTuple):
    """A token's share of the squared top right singular vector, what moves in, and of the left one,
    what moves out (None where the output has no tokens).
    """

    n: int
    sequence: int
    token: int
    id: int
    text: str
    carried: float
    received: float | None


class LogitRow(NamedTuple):
    """One of the logits of the next token that the top direction moves most; `change` is its entry
    in the left singular vector, whose sign is common to all rows and means nothing.
    """

    n: int
    sequence: int
    rank: int
    id: int
    text: str
    change: float


@dataclass(frozen=True)
class SpanConfig:
    """What to measure.

    Args:
        model: A name that `attnscope.load` knows, or that of a model in the workbench.
        text: A named text, a file, or the name of ids in the workbench.
        start: Where the span begins: a layer number, "last" or "final", as a string.
        stop: Where it ends: a layer number, "last", "final", "logits" or "next".
        lengths: Numbers of tokens.
        samples: Sequences per length, consecutive pieces of the text.
        top: How many singular values.
        pieces: Whether to measure its blocks, too.
        tol: Relative width of every bracket or, without brackets, accuracy of every estimate.
        failure_probability: All upper bounds of the run hold together but with this probability;
            None for no upper bounds.
    """

    model: str = "minilm"
    text: str = "alice"
    start: str = "0"
    stop: str = "last"
    lengths: tuple[int, ...] = (128,)
    samples: int = 1
    top: int = 1
    pieces: bool = True
    tol: float = 1e-2
    failure_probability: float | None = 1e-6
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SpanCell(Cell):
    """One sequence; `tokens` is the hash of all ids of the text."""

    model: str
    weights: str
    device: str
    dtype: str
    text: str
    tokens: str
    start: str
    stop: str
    n: int
    sequence: int
    top: int
    pieces: bool
    tol: float
    certified: bool
    seed: int

    @property
    def group(self) -> str:
        return self.model
