"""What a tap at the attention of a layer tells: the coupling, its statistics, single heads, and
proved bounds at a point.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds import Bound, Bounds
from attnscope.bounds.registry import theorems
from attnscope.bounds.smooth.tapped import Tapped
from attnscope.models._taps import Heard, alone, listening

if TYPE_CHECKING:
    from attnscope.models._base import Model

LINEAR = 1e-9
"""How far the way out of the attention may be from linear, relative to its size, in float64."""
CHUNK = 32
"""Tangents of a token that are moved at once."""


class _Enough(Exception):
    """Stops a layer when its attention was reached."""


@final
@dataclass(frozen=True, eq=False)
class Tap:
    r"""The attention of one layer at its tokens, in float64.

    `coupling` is $P$, one matrix for each head; its rows sum to 1, or less where a sink takes some.
    `largest_score` is the largest score that is read, after the soft-cap and the bias.
    """

    layer: int
    coupling: Float[Tensor, "h n n"]
    largest_score: Float[Tensor, " h"]

    @property
    def column_sums(self) -> Float[Tensor, "h n"]:
        r"""$\sum_iP_{ij}$: how much each token is read."""
        return self.coupling.sum(-2)

    @property
    def sinks(self) -> Int[Tensor, " h"]:
        """The token that each head reads most."""
        return self.column_sums.argmax(-1)

    @property
    def entropy(self) -> Float[Tensor, " h"]:
        r"""$-\sum_jP_{ij}\log P_{ij}$, the mean over the rows."""
        return torch.special.entr(self.coupling).sum(-1).mean(-1)


def heard_at(model: Model, layer: int, x: Float[Tensor, "*b n d"]) -> Heard:
    """What the attention of this layer is given when it reads x."""
    heard: list[Heard] = []

    def stop(call: Heard) -> Heard:
        heard.append(call)
        raise _Enough

    with suppress(_Enough), listening(stop):
        model.function(layer, "attention")(x)
    return heard[0]


def coupling(heard: Heard) -> tuple[Float[Tensor, "h n n"], Float[Tensor, "h n n"], Tensor]:
    """The coupling of one sequence, the slope of the soft-cap, and the largest score."""
    z, added = (part[0] for part in heard.scores())
    slope = torch.ones_like(z)
    if (cap := heard.softcap) is not None:
        z = cap * torch.tanh(z / cap)
        slope = 1 - (z / cap).square()
    score = z + added
    sinks = heard.sinks
    if sinks is not None:
        column = sinks[:, None, None].expand(-1, z.shape[1], 1)
        p = torch.softmax(torch.cat([score, column], -1), dim=-1)[..., :-1]
    else:
        p = torch.softmax(score, dim=-1)
    # A row that may read nothing gives zero, as the kernel does.
    return torch.nan_to_num(p), slope, score.amax((-2, -1))


def tap(model: Model, layer: int, x: Float[Tensor, "n d"]) -> Tap:
    """`Model.tap` at tokens x."""
    with torch.no_grad():
        p, _, largest = coupling(heard_at(model, layer, x))
    return Tap(layer, p, largest)


def bounds_at(model: Model, layer: int, x: Float[Tensor, "n d"]) -> Bounds:
    """Every proved bound at a tap on the derivative of the attention of this layer at x."""
    place = place_at(model, layer, x)
    return Bounds(
        Bound(
            float(proved(None, place)),
            "upper",
            "proved",
            proved.name,
            proved.source,
            "the attention as the model's own code hands it over, in exact arithmetic",
        )
        for proved in theorems()
        if proved.where is Tapped
    )


def place_at(model: Model, layer: int, x: Float[Tensor, "n d"]) -> Tapped:
    """The layer at its tokens with the derivatives of its queries, keys and values."""
    output = _output(model, layer, x)

    def given(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heard = heard_at(model, layer, x)
        parts = heard.query, heard.repeated(heard.key), heard.repeated(heard.value)
        return parts[0][0], parts[1][0], parts[2][0]

    _check_token_wise(model, layer, given, x)
    with torch.no_grad():
        heard = heard_at(model, layer, x)
        p, slope, _ = coupling(heard)
        q, k, v = (part.double() for part in given(x))
    scale = heard.told.get("scaling")

    def moved(direction: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(given, (x,), (direction.expand(x.shape).contiguous(),))[1]

    basis = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    moves = torch.func.vmap(moved, chunk_size=CHUNK)(basis)
    query_moves, key_moves, value_moves = (m.detach().double().movedim(0, -1) for m in moves)
    return Tapped(
        p,
        slope,
        q.shape[-1] ** -0.5 if scale is None else float(scale),
        q,
        k,
        v,
        query_moves,
        key_moves,
        value_moves,
        output,
    )


def _check_token_wise(model: Model, layer: int, given: object, x: Float[Tensor, "n d"]) -> None:
    """No theorem covers queries, keys or values that mix tokens."""
    assert callable(given)
    direction = torch.zeros_like(x)
    direction[0] = 1
    changes = torch.func.jvp(given, (x,), (direction,))[1]
    if any(float(change[:, 1:].detach().abs().max()) > 0 for change in changes if x.shape[0] > 1):
        raise ValueError(
            f"queries, keys or values of layer {layer} of {model.name} depend on several tokens,"
            " which no theorem covers."
        )


def _output(model: Model, layer: int, x: Float[Tensor, "n d"]) -> Float[Tensor, "h d v"]:
    """The matrices $W_h$ behind the attention; refused where the way out is not linear, or is gated
    by the tokens.
    """
    heard = heard_at(model, layer, x)
    h, v = heard.query.shape[1], heard.value.shape[-1]
    n, d = x.shape
    function = model.function(layer, "attention")

    def written(o: Tensor, x: Tensor) -> Tensor:
        with listening(lambda _: o), torch.no_grad():
            return function(x.expand(len(o), n, d).contiguous()).double()

    basis = torch.eye(h * v, dtype=x.dtype, device=x.device).reshape(h * v, 1, h, v)
    nothing = torch.zeros(1, n, h, v, dtype=x.dtype, device=x.device)
    start = written(nothing, x)[0]
    columns = torch.cat(
        [written(some.expand(-1, n, h, v), x)[:, 0] - start[0] for some in basis.split(CHUNK)]
    )
    draw = torch.randn(1, n, h, v, generator=torch.Generator().manual_seed(7)).to(x)
    expected = start + draw[0].double().reshape(n, h * v) @ columns
    for tokens in (x, x.flip(0) - 0.5 * x):
        found = written(draw, tokens)[0]
        if float((found - expected).abs().max()) > LINEAR * expected.abs().max():
            raise ValueError(
                f"the attention of layer {layer} of {model.name} is followed by a gate or another"
                " map that no theorem covers."
            )
    return columns.reshape(h, v, d).mT.contiguous()


def check_heads(model: Model, layer: int) -> None:
    """Refuse single heads where the layer is not the sum of what each head writes alone."""
    n = model.usual_length
    draw = torch.randn(1, n, model.dim, generator=torch.Generator().manual_seed(3))
    x = draw.to(device=model.device, dtype=model.dtype)
    function = model.function(layer, "attention")
    with torch.no_grad():
        count = heard_at(model, layer, x).query.shape[1]
        whole = function(x)
        with listening(lambda call: 0 * call.attend()):
            silent = function(x)
        total = silent
        for head in range(count):
            with listening(alone(head)):
                total = total + function(x) - silent
    if float((total - whole).abs().max()) > 1e-3 * float(whole.abs().max()):
        raise ValueError(
            f"the heads of layer {layer} of {model.name} are mixed before they are added, so that"
            " none of them can be measured alone."
        )
