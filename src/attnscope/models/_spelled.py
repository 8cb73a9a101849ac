"""Attention seen through a tap as heads with matrices, where its maps are linear: the fast paths of
rebuilt heads then serve it without a family file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds.smooth.moves import Moves
from attnscope.measures import Particles
from attnscope.models._moves import alike_at, confirmed, moved
from attnscope.models._rebuilt import ROUNDING, gap
from attnscope.models._tapping import check_tapped, given, heard_at, holds, output_at
from attnscope.models._taps import Heard
from attnscope.models.door import _as_mask_or_bias, _without_mask

if TYPE_CHECKING:
    from attnscope.models._base import Model

EQUAL = 1e-9
"""How far values and products may be from those of the module, in float64, relative to their
size.
"""


def spelled(model: Model, layer: int, x: Float[Tensor, "*stack n d"]) -> Softmax | None:
    """The attention of this layer at tokens x as heads with matrices, in the dtype of x; None where
    it is not softmax of linear maps, over all keys or those up to the query.

    The matrices come from the module's own products in float64, and are confirmed on random ones
    and on the output at every sequence.
    """
    if not holds(partial(check_tapped, model, layer)):
        return None
    wide = model.doubled() or model
    sequences = x.detach().double().reshape(-1, *x.shape[-2:])
    try:
        made = _at(wide, layer, sequences[0])
    except ValueError:  # a gate, or tokens that mix
        return None
    if made is None or not all(_same(wide, layer, made, one) for one in sequences):
        return None
    own = made.to(x.dtype)
    with torch.no_grad():  # in the dtype of the module itself, not only of its copy
        now = model.function(layer, "attention")(x)
        return own if gap(own(x, Particles(x)), now) <= ROUNDING[model.dtype] else None


def _at(model: Model, layer: int, x: Float[Tensor, "n d"]) -> Softmax | None:
    with torch.no_grad():
        heard = heard_at(model, layer, x)
    causal = _causal(heard)
    special = (heard.softcap, heard.sinks, heard.told.get("position_bias"))
    if causal is None or any(part is not None for part in special):
        return None
    maps = partial(given, model, layer)
    moves = alike_at(maps, x)
    if moves is None:
        return None
    query, key, value = (each.rows for each in moves)
    with torch.no_grad():
        q, k, v = (part[:, 0].double() for part in maps(x))
    output, constant = output_at(model, layer, x)
    heads = Heads(
        query,
        key,
        value,
        output,
        query_bias=q - query @ x[0],
        key_bias=k - key @ x[0],
        value_bias=v - value @ x[0],
        output_bias=constant,
        scale=heard.scale,
    )
    return Softmax(heads, causal=causal)


def _same(model: Model, layer: int, made: Softmax, x: Float[Tensor, "n d"]) -> bool:
    """Whether these heads give the output of the module at x, and its maps their derivatives."""
    with torch.no_grad():
        own = model.function(layer, "attention")(x)
        if gap(made(x, Particles(x)), own) > EQUAL:
            return False
    draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    tangent = draw.to(x)
    changes = moved(partial(given, model, layer), x, tangent[None])
    matrices = (made.heads.query, made.heads.key, made.heads.value)
    return all(
        confirmed(Moves.alike(matrix), tangent, change[0], EQUAL) is not None
        for matrix, change in zip(matrices, changes, strict=True)
    )


def _causal(heard: Heard) -> bool | None:
    """Whether each query reads the keys up to itself (True) or all (False); None for anything
    else.
    """
    m, n = heard.query.shape[2], heard.key.shape[2]
    if heard.mask is None:
        mask = _without_mask(heard.module, heard.told.get("is_causal"), heard.query, heard.key)
    else:
        mask, bias = _as_mask_or_bias(heard.mask, heard.query, heard.key)
        if bias is not None:
            return None
    if mask is None:
        return False
    if mask.dtype == torch.bool:
        orders = {False: torch.ones(m, n).bool(), True: torch.ones(m, n).tril().bool()}
    else:
        last = torch.arange(1, m + 1)
        orders = {
            False: torch.stack([torch.zeros(m), torch.full((m,), n)], -1),
            True: torch.stack([torch.zeros(m), last], -1),
        }
    for causal, order in orders.items():
        if m == n and bool((mask == order.to(mask.device)).all()):
            return causal
    return None
