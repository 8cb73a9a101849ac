"""What a run of `attack` is asked, cut into, and made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.studies.cell import Cell


class WorstRow(NamedTuple):
    """The worst input found: `value` is its local constant, a proved lower bound of the largest;
    `bound` is a proved upper bound, None where no theorem gives a finite one.

    `tokens` and `weights` are the input; `history` has the value of every start after every step,
    `names` where each began.
    """

    target: str
    n: int
    radius: float
    weighted: bool
    value: float
    bound: float | None
    bound_name: str | None
    bound_source: str | None
    bound_assumes: str | None
    start: str
    tokens: np.ndarray
    weights: np.ndarray
    history: np.ndarray
    names: np.ndarray

    @property
    def ratio(self) -> float | None:
        """The value over the bound, at most 1."""
        return self.value / self.bound if self.bound else None  # a bound of 0 is a constant map


class SplitRow(NamedTuple):
    """The law of mass splitting at the tokens: `move` and `split` are the constants of moving
    tokens and of moving the halves of `token` apart along `direction`; `apart` is that of every
    token.
    """

    target: str
    n: int
    move: float
    split: float
    gain: float
    token: int
    converged: bool
    direction: np.ndarray
    apart: np.ndarray


class FiniteRow(NamedTuple):
    """A finite attack: "move" or "split", with `ratio` = moved / spent."""

    kind: str
    eps: float
    spent: float
    moved: float
    ratio: float


class CurveRow(NamedTuple):
    """A point of the curves L(n, R): what was found there, a lower bound, and the input."""

    target: str
    n: int
    radius: float
    found: float
    start: str
    tokens: np.ndarray


class CurveBoundRow(NamedTuple):
    """A proved upper bound at a point of the curves."""

    n: int
    radius: float
    name: str
    value: float


@dataclass(frozen=True)
class Source:
    """What is attacked: a layer or a head of a model on a text, or attention made of matrices.

    Args:
        model: A name that `attnscope.load` knows; None for matrices.
        layer: Layer of the model; `head` one of its heads alone, None for all.
        attention: Which attention the matrices make.
        scores: Matrix A by name or .npy file; `values` is V.
        cloud: A .npy file of tokens to split; None for random ones in the ball.
        tokens: How many tokens.
        radius: Of the ball; None for 1, or for the largest token norm of the text.
        seed: Of random matrices, tokens and starts.
    """

    model: str | None = None
    layer: int = 0
    head: int | None = None
    text: str = "alice"
    attention: str = "softmax"
    heads: int = 1
    scores: str = "random"
    values: str = "identity"
    dim: int = 8
    cloud: str | None = None
    causal: bool = False
    tokens: int = 32
    radius: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class AttackConfig(Source):
    """What to attack, and how.

    Args:
        weighted: Search masses too.
        only: "both", "worst" or "split".
        eps: Budgets of the finite attacks; None for some between small and a token's norm.
        lengths: Of the curves L(n, R); None for no curves.
        radii: Of the curves; None for a quarter of the radius to all of it.
    """

    weighted: bool = False
    only: str = "both"
    eps: tuple[float, ...] | None = None
    lengths: tuple[int, ...] | None = None
    radii: tuple[float, ...] | None = None
    starts: int = 24
    steps: int = 200


@dataclass(frozen=True, kw_only=True)
class TargetCell(Source, Cell):
    """A source, and the hash of the attention and the tokens that it comes to."""

    made: str


@dataclass(frozen=True, kw_only=True)
class Worst(TargetCell):
    """The worst input of n tokens in a ball."""

    n: int
    ball: float
    weighted: bool
    starts: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Law(TargetCell):
    """The law of mass splitting, and finite attacks at these budgets."""

    budgets: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CurvePoint(TargetCell):
    """The last of these lengths and of these radii: its search also begins at what is found for
    those before.
    """

    lengths: tuple[int, ...]
    radii: tuple[float, ...]
    starts: int
    steps: int
