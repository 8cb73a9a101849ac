"""Which tokens carry the top singular direction of a layer: what moves in, what moves out."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from attnscope.models import Model
from attnscope.operators import SpectralNorm
from attnscope.studies.measure.rows import Place


class DirectionRow(NamedTuple):
    r"""One token of the first sequence of the longest length, in the top singular direction of a
    layer.

    `carried` is the token's share of $|z|^2$, $z$ the right singular vector: how much of the worst
    small move it makes. `received` is its share of the left one: how much of the response it shows.
    The vectors are those that the search found; where two singular values are nearly equal they may
    be any mixture of two.
    """

    layer: int
    n: int
    token: int
    id: int
    text: str
    carried: float
    received: float
    model: str = ""
    part: str = ""
    of_text: str = ""


def direction_rows(
    cell: Place, model: Model, layer: int, ids: Int[Tensor, " n"], found: SpectralNorm
) -> list[DirectionRow]:
    """The shares of every token, from the singular vectors of the first problem of a stack."""
    carried, received = (shares(vectors[0]).tolist() for vectors in (found.right, found.left))
    columns = zip(ids.tolist(), model.pieces(ids), carried, received, strict=True)
    where = (cell.model, cell.part, cell.text)
    return [DirectionRow(layer, len(ids), token, *row, *where) for token, row in enumerate(columns)]


def shares(vector: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The part of the squared norm that each token has; zero where there is none."""
    squares = vector.double().square().sum(-1)
    return squares / squares.sum().clamp(min=1e-300)
