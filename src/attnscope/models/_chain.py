r"""The derivative of a tapped attention by the chain rule: token-wise maps by the module's own
code, attention in closed form.

$J = D\text{out}\cdot D\text{attention}(q, k, v)\cdot D(q, k, v)$. The outer two are graphs of
linear maps that are kept; nothing of the attention is differentiated twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.models._tapping import heard_at
from attnscope.models._taps import Heard, listening
from attnscope.models.door import _as_mask_or_bias, _without_mask
from attnscope.operators import LinearOperator
from attnscope.operators.fused import Form, Inputs, Tiled

if TYPE_CHECKING:
    from attnscope.models._base import Model


def attention_chain(
    model: Model, layer: int, x: Float[Tensor, "*stack n d"]
) -> LinearOperator | None:
    """The derivative of the attention of this layer at x; None where tokens gate what is written,
    or where the model reads one sequence at a time.
    """
    flat = x.detach().reshape(-1, *x.shape[-2:])
    function = model.function(layer, "attention")
    with torch.enable_grad():
        at = flat.clone().requires_grad_()
        heard = heard_at(model, layer, at)
        given = (heard.query, heard.key, heard.value)
        if len(heard.query) != len(flat) or not all(part.requires_grad for part in given):
            return None
        probes = [torch.zeros_like(part).requires_grad_() for part in given]
        (pulled,) = torch.autograd.grad(given, at, probes, create_graph=True)
        tiled = _tiled(heard)
        o, rows = tiled.value()
        written = o.transpose(1, 2).contiguous().requires_grad_()
        with listening(lambda _: written):
            y = function(at)
        # along a random direction: what is centred or normalised has a sum that never moves
        draw = torch.randn(y.shape, generator=torch.Generator().manual_seed(23)).to(y)
        (gate,) = torch.autograd.grad(y, at, draw, retain_graph=True, allow_unused=True)
        if gate is not None and bool(gate.any()):
            return None
        probe = torch.zeros_like(y).requires_grad_()
        (read,) = torch.autograd.grad(y, written, probe, create_graph=True)

    def mv(u: Tensor) -> Tensor:
        q, k, v = torch.autograd.grad(pulled, probes, u.reshape(flat.shape), retain_graph=True)
        change = tiled.jvp(o, rows, Inputs(q, k, v, None, None)).transpose(1, 2)
        return torch.autograd.grad(read, probe, change, retain_graph=True)[0].reshape(u.shape)

    def rmv(v: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(y, written, v.reshape(flat.shape), retain_graph=True)
        back = tiled.vjp(o, rows, g.transpose(1, 2).contiguous(), (False, False))
        moved = (back.q, back.k, back.v)
        return torch.autograd.grad(given, at, moved, retain_graph=True)[0].reshape(v.shape)

    shape = tuple(x.shape[-2:])
    return LinearOperator(mv, rmv, shape, shape, x.dtype, x.device, tuple(x.shape[:-2]))


def _tiled(heard: Heard) -> Tiled:
    """The attention of a call at its own queries, keys and values."""
    q, k, v = (part.detach() for part in (heard.query, heard.key, heard.value))
    mask, bias, sinks, form = fixed(heard)
    return Tiled(
        q,
        k,
        v,
        None if bias is None else bias.to(q.dtype),
        None if sinks is None else sinks.to(q.dtype),
        mask,
        form,
        keep=True,
    )


def fixed(heard: Heard) -> tuple[Tensor | None, Tensor | None, Tensor | None, Form]:
    """What does not move with the tokens of a call: mask, bias, sinks (1, h, 1, 1), scale and
    soft-cap.
    """
    told, bias = heard.told, None
    if heard.mask is None:
        mask = _without_mask(heard.module, told.get("is_causal"), heard.query, heard.key)
    else:
        mask, bias = _as_mask_or_bias(heard.mask, heard.query, heard.key)
    if (own := told.get("position_bias")) is not None:
        bias = own.detach() if bias is None else own.detach() + bias
    sinks = told.get("s_aux")
    return (
        mask,
        bias,
        None if sinks is None else sinks.detach().reshape(1, -1, 1, 1),
        Form(heard.scale, heard.softcap),
    )
