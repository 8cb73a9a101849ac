"""What a tap at the attention of a layer tells: the coupling, its statistics, single heads, and
proved bounds at a point.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds import Bound, Bounds
from attnscope.bounds.registry import theorems
from attnscope.bounds.smooth.tapped import Tapped
from attnscope.models._moves import SHORT, check_size, moves_at
from attnscope.models._taps import Heard, alone, listening, silent

if TYPE_CHECKING:
    from attnscope.models._base import Model

LINEAR = 1e-9
"""How far the way out of the attention may be from linear, relative to its size, in float64."""


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
    model.running(layer, x.shape[-2])  # seen before anybody listens
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
    slope = torch.ones((), dtype=z.dtype, device=z.device).expand_as(z)
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
    with torch.no_grad():
        shape = heard_at(model, layer, x)
    check_size(shape.query.shape[1], len(x), shape.query.shape[-1], shape.value.shape[-1])
    output, _ = output_at(model, layer, x)
    maps = partial(given, model, layer)
    check_token_wise(model, layer, maps, x)
    with torch.no_grad():
        heard = heard_at(model, layer, x)
        p, slope, _ = coupling(heard)
        q, k, v = (part.double() for part in maps(x))
    moves = moves_at(maps, x, x if model.sees_images else x[:SHORT])
    return Tapped(
        p,
        slope,
        heard.scale,
        q,
        k,
        v,
        *moves,
        output,
    )


def given(model: Model, layer: int, x: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every head."""
    heard = heard_at(model, layer, x)
    return heard.query[0], heard.repeated(heard.key)[0], heard.repeated(heard.value)[0]


def check_token_wise(
    model: Model, layer: int, maps: Callable[[Tensor], Any], x: Float[Tensor, "n d"]
) -> None:
    """No theorem covers queries, keys or values that mix tokens."""
    direction = torch.zeros_like(x)
    direction[0] = 1
    changes = torch.func.jvp(maps, (x,), (direction,))[1]
    if any(float(change[:, 1:].detach().abs().max()) > 0 for change in changes if x.shape[0] > 1):
        raise ValueError(
            f"queries, keys or values of layer {layer} of {model.name} depend on several tokens,"
            " which no theorem covers."
        )


def output_at(
    model: Model, layer: int, x: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "h d v"], Float[Tensor, " d"]]:
    """The matrices $W_h$ behind the attention, and the constant that is added; refused where the
    way out is not linear, or is gated by the tokens.
    """
    heard = heard_at(model, layer, x)
    h, v = heard.query.shape[1], heard.value.shape[-1]
    n, d = x.shape
    function = model.function(layer, "attention")

    def written(o: Tensor, x: Tensor) -> Tensor:
        with listening(lambda _: o), torch.no_grad():
            return function(x.expand(len(o), n, d).contiguous()).double()

    # The same matrix behind every token (checked below): each of them shows some of its columns.
    rounds = ceil(h * v / n)
    basis = torch.zeros(rounds * n, h * v, dtype=x.dtype, device=x.device)
    basis[: h * v] = torch.eye(h * v)
    nothing = torch.zeros(1, n, h, v, dtype=x.dtype, device=x.device)
    start = written(nothing, x)[0]
    columns = torch.cat([written(some[None], x)[0] - start for some in basis.view(-1, n, h, v)])
    columns = columns[: h * v]
    draw = torch.randn(1, n, h, v, generator=torch.Generator().manual_seed(7)).to(x)
    expected = start + draw[0].double().reshape(n, h * v) @ columns
    for tokens in (x, x.flip(0) - 0.5 * x):
        found = written(draw, tokens)[0]
        if float((found - expected).abs().max()) > LINEAR * expected.abs().max():
            raise ValueError(
                f"the attention of layer {layer} of {model.name} is followed by a gate or another"
                " map that no theorem covers."
            )
    return columns.reshape(h, v, d).mT.contiguous(), start[0]


def check_tapped(model: Model, layer: int) -> None:
    """Refuse a layer whose attention nobody can listen to."""
    if not model.tapped or model.anatomy(layer).core is None:
        raise ValueError(
            f"the attention of layer {layer} of {model.name} does not go through transformers'"
            " AttentionInterface, so its heads cannot be seen."
        )


def check_covered(model: Model, layer: int) -> None:
    """Refuse a layer that no theorem covers, seen on random tokens."""
    check_tapped(model, layer)
    model = model.doubled() or model
    x = _random_tokens(model)[0]
    output_at(model, layer, x)
    check_token_wise(model, layer, partial(given, model, layer), x)


def check_heads(model: Model, layer: int) -> None:
    """Refuse single heads where the layer is not the sum of what each head writes alone."""
    check_tapped(model, layer)
    x = _random_tokens(model)
    function = model.function(layer, "attention")
    with torch.no_grad():
        count = heard_at(model, layer, x).query.shape[1]
        whole = function(x)
        with listening(silent):
            rest = function(x)
        total = rest
        for head in range(count):
            with listening(alone(head)):
                total = total + function(x) - rest
    if float((total - whole).abs().max()) > 1e-3 * float(whole.abs().max()):
        raise ValueError(
            f"the heads of layer {layer} of {model.name} are mixed before they are added, so that"
            " none of them can be measured alone."
        )


def holds(check: Callable[[], object]) -> bool:
    """Whether a check refuses nothing."""
    try:
        check()
    except ValueError:
        return False
    return True


def _random_tokens(model: Model) -> Float[Tensor, "1 n d"]:
    n = model.usual_length
    draw = torch.randn(1, n, model.dim, generator=torch.Generator().manual_seed(3))
    return draw.to(device=model.device, dtype=model.dtype)
