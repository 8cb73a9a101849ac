"""The Jacobian of a part of a layer: analytic kernels where the family is understood, the model's
own modules elsewhere.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention.softmax import Softmax
from attnscope.measures import Particles
from attnscope.models._base import Model
from attnscope.models._parts import Part
from attnscope.models._rebuilt import norm_value
from attnscope.operators import LinearOperator, jacobian
from attnscope.operators.norms import of_norm


def part_jacobian(
    model: Model,
    layer: int,
    part: Part,
    x: Float[Tensor, "*stack n d"],
    double: Model | None = None,
) -> LinearOperator:
    """The derivative of `model.function(layer, part)` at tokens x; leading axes are a stack of
    sequences.

    Attention and norms are differentiated in closed form. Whole blocks and networks whose heads are
    not rebuilt go through autograd; `double`, the same model in float64, then serves the last
    product of a lower bound.
    """
    stack = x.ndim - 2
    if part in ("mlp", "block") or not model.rebuilt(layer):
        exact = None if double is None else double.function(layer, part)
        return jacobian(model.function(layer, part), x, stack, double=exact)
    attention = model.attention(layer)
    if part == "attention":
        return jacobian(attention, Particles(x))
    norm, pre_norm = model.norm(layer), model.pre_norm

    def exact_part() -> LinearOperator:
        return _with_norm(
            attention.to(torch.float64),
            copy.deepcopy(norm).double(),
            pre_norm,
            part,
            x.to(torch.float64),
        )

    return replace(
        _with_norm(attention, norm, pre_norm, part, x),
        exact=None if x.dtype == torch.float64 else exact_part,
        restrict=(
            None
            if not stack
            else lambda index: part_jacobian(model, layer, part, x.flatten(0, stack - 1)[index])
        ),
    )


def head_jacobian(
    model: Model, layer: int, x: Float[Tensor, "*stack n d"], head: int
) -> LinearOperator:
    """The derivative of what one head adds to the attention, at tokens x."""
    function = model.function(layer, "attention", head)
    if model.rebuilt(layer):
        made = model.from_weights(layer)
        return jacobian(Softmax(made.heads.select(head), causal=made.causal), Particles(x))
    double = model.doubled()
    exact = None if double is None else double.function(layer, "attention", head)
    return jacobian(function, x, x.ndim - 2, double=exact)


def _with_norm(
    attention: Softmax, norm: nn.Module, pre_norm: bool, part: Part, x: Float[Tensor, "*stack n d"]
) -> LinearOperator:
    with torch.no_grad():
        if pre_norm:
            inner = jacobian(attention, Particles(norm_value(norm, x))) @ _of_module(norm, x)
            return inner.plus(1.0) if part == "residual" else inner
        inner = jacobian(attention, Particles(x)).plus(1.0)
        return (
            inner
            if part == "residual"
            else _of_module(norm, x + attention(x, Particles(x))) @ inner
        )


def _of_module(norm: nn.Module, x: Tensor) -> LinearOperator:
    gain = getattr(norm, "weight", None)
    if isinstance(norm, nn.LayerNorm) and isinstance(gain, Tensor):
        return of_norm(x, gain.detach(), norm.eps, centred=True)
    eps = getattr(norm, "variance_epsilon", None)
    if isinstance(gain, Tensor) and isinstance(eps, float):
        return of_norm(x, gain.detach(), eps, centred=False)
    return jacobian(norm, x, x.ndim - 2, double=copy.deepcopy(norm).double())
