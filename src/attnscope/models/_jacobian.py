"""The Jacobian of a part of a layer: analytic kernels where the family is understood, the model's
own modules elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attention.softmax import Softmax
from attnscope.measures import Particles
from attnscope.models._base import Model
from attnscope.models._chain import attention_chain
from attnscope.models._parts import Part
from attnscope.models._rebuilt import norm_value
from attnscope.models._spelled import spelled
from attnscope.models._tapped_heads import is_known, tapped_heads
from attnscope.models._tapping import check_tapped, holds
from attnscope.operators import LinearOperator, jacobian
from attnscope.operators.heads import head_values, of_heads
from attnscope.operators.norms import of_norm
from attnscope.operators.precision import wide, widened


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
    # once: it runs the layer
    known = part not in ("mlp", "block") and model.rebuilt(layer, x, part)
    if not known and model.readable(layer) and double is None and part not in ("mlp", "block"):
        double = model.doubled()  # nobody expects heads that are not the layer's
    if part == "attention" and not known and holds(partial(check_tapped, model, layer)):
        if (made := spelled(model, layer, x)) is not None:
            return jacobian(made, Particles(x))
        chained = _chained(model, layer, x, double)
        if chained is not None:
            return chained
    if not known:
        exact = None if double is None else double.function(layer, part)
        return jacobian(model.function(layer, part), x, stack, double=exact)
    attention = model.from_weights(layer)
    if part == "attention":
        return jacobian(attention, Particles(x))
    norm, pre_norm = model.norm(layer), model.pre_norm

    def exact_part() -> LinearOperator:
        here = x.device
        own = widened(copy.deepcopy(norm), here)
        return _with_norm(widened(attention, here), own, pre_norm, part, wide(x))

    return replace(
        _with_norm(attention, norm, pre_norm, part, x),
        exact=None if x.dtype == torch.float64 else exact_part,
        restrict=(
            None
            if not stack
            else lambda index: part_jacobian(model, layer, part, x.flatten(0, stack - 1)[index])
        ),
    )


def _chained(
    model: Model, layer: int, x: Float[Tensor, "*stack n d"], double: Model | None
) -> LinearOperator | None:
    """The chain rule through a tap, with what a stack and a lower precision need."""
    op = attention_chain(model, layer, x)
    if op is None:
        return None
    stack = x.ndim - 2
    return replace(
        op,
        exact=None
        if double is None
        else lambda: part_jacobian(double, layer, "attention", wide(x)),
        restrict=(
            None
            if not stack
            else lambda index: part_jacobian(
                model, layer, "attention", x.flatten(0, stack - 1)[index], double
            )
        ),
    )


def head_jacobian(
    model: Model,
    layer: int,
    x: Float[Tensor, "*stack n d"],
    head: int,
    double: Model | None = None,
) -> LinearOperator:
    """The derivative of what one head adds to the attention, at tokens x."""
    function = model.function(layer, "attention", head)
    made = _matrices(model, layer, x)
    if made is not None:
        return jacobian(Softmax(made.heads.select(head), causal=made.causal), Particles(x))
    if (tapped := tapped_heads(model, layer, x)) is not None:
        return tapped.operator((head,), tuple(x.shape[:-2]), x.dtype, reduced=False)
    exact = None if double is None else double.function(layer, "attention", head)
    return jacobian(function, x, x.ndim - 2, double=exact)


def heads_jacobian(
    model: Model,
    layer: int,
    x: Float[Tensor, "b n d"],
    heads: Sequence[int],
    double: Model | None = None,
) -> LinearOperator:
    """The derivatives of what each of these heads adds, as one stack (heads, b); singular values
    are those of the heads, singular vectors may be in coordinates of their own.
    """
    whole = _matrices(model, layer, x)
    if whole is not None:
        return of_heads(replace(whole, heads=whole.heads.select(*heads)), Particles(x))
    if (tapped := tapped_heads(model, layer, x)) is not None:
        return tapped.operator(heads, (len(heads), len(x)), x.dtype, reduced=True)
    numbers = torch.tensor(heads).repeat_interleave(len(x))
    return _one_by_one(
        model, layer, x.repeat(len(heads), 1, 1), numbers, (len(heads), len(x)), double
    )


def heads_values(
    model: Model, layer: int, x: Float[Tensor, "b n d"], heads: Sequence[int]
) -> Float[Tensor, "h b n w"]:
    """What each of these heads adds, in the coordinates into which `heads_jacobian` maps."""
    with torch.no_grad():
        whole = _matrices(model, layer, x)
        if whole is not None:
            return head_values(replace(whole, heads=whole.heads.select(*heads)), Particles(x))
        if (tapped := tapped_heads(model, layer, x)) is not None:
            return tapped.values(heads, x.dtype)
        return torch.stack([model.function(layer, "attention", head)(x) for head in heads])


def _matrices(model: Model, layer: int, x: Float[Tensor, "*stack n d"]) -> Softmax | None:
    """The attention as heads with matrices, from its weights or from a tap."""
    if model.rebuilt(layer, x):
        return model.from_weights(layer)
    return None if is_known(model, layer) else spelled(model, layer, x)


def _one_by_one(
    model: Model,
    layer: int,
    x: Float[Tensor, "p n d"],
    numbers: Int[Tensor, " p"],
    stack: tuple[int, ...],
    double: Model | None,
) -> LinearOperator:
    """Problem i is head `numbers[i]` at tokens x[i]."""

    def function(of: Model) -> Callable[[Tensor], Tensor]:
        single = {
            head: of.function(layer, "attention", head) for head in sorted(set(numbers.tolist()))
        }

        def each(x: Tensor) -> Tensor:
            flat, out = x.reshape(-1, *x.shape[-2:]), []
            for head, run in single.items():
                out.append(run(flat[numbers == head]))
            order = torch.cat([torch.where(numbers == head)[0] for head in single]).argsort()
            return torch.cat(out)[order].reshape(x.shape)

        return each

    return replace(
        jacobian(
            function(model),
            x.reshape(*stack, *x.shape[-2:]),
            len(stack),
            double=None if double is None else function(double),
        ),
        restrict=lambda index: _one_by_one(
            model, layer, x[index], numbers[index], (len(index),), double
        ),
    )


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
    return jacobian(norm, x, x.ndim - 2, double=widened(copy.deepcopy(norm), x.device))
