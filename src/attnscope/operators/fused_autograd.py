"""Fused attention for torch: values and derivatives by tiles under every transform of torch.func
and under ordinary autograd.

Four functions stand for the value, its derivative, its adjoint and the second derivative, and each
of the first three names the others as its derivatives. So forward over reverse, reverse over
reverse and reverse over forward stay tiled. Two forward levels would need the second derivative in
forward form, which is not here: torch then asks `_Derivative` for its own derivative, and it
refuses.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.operators.fused import Form, Inputs, Tiled

Five = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def fused_attention(
    q: Float[Tensor, "b h m k"],
    k: Float[Tensor, "b g n k"],
    v: Float[Tensor, "b g n v"],
    scale: float,
    mask: Bool[Tensor, "#b #h #m n"] | Int[Tensor, "#b 1 m 2"] | None = None,
    bias: Float[Tensor, "#b #h #m n"] | None = None,
    sinks: Float[Tensor, "#b h 1 1"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "b h m v"]:
    r"""$o_i = \sum_j P_{ij} v_j$ with $P_i$ the softmax of
    $C\tanh(s\langle q_i, k_j\rangle / C) + b_{ij}$ and of the sink's logit.

    Args:
        q: queries of h heads; h is a multiple of g.
        k: keys, each read by h / g neighbouring heads.
        v: values.
        scale: s, of any sign.
        mask: which keys a row reads: True, or an interval (first key, one after the last). A row
            that reads none gives 0.
        bias: added to the scores.
        sinks: logits of tokens without value, one for each head.
        softcap: C, or None for scores as they are.

    Returns:
        The output, differentiable twice in q, k, v, bias and sinks (once forward at the most).
    """
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            "the heads of the queries must be a multiple of those of the keys, got"
            f" {q.shape[1]} and {k.shape[1]}."
        )
    out: Tensor = _Value.apply(q, k, v, bias, sinks, mask, Form(scale, softcap))[0]
    return out


def _tiled(point: Any, form: Form) -> Tiled:
    q, k, v, bias, sinks, mask = point
    return Tiled(q, k, v, bias, sinks, mask, form)


class _Value(torch.autograd.Function):
    """(q, k, v, bias, sinks, mask, form) to the output and the numbers of its rows."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return Tiled(*arguments).value()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *x, mask, ctx.form = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*x, mask, *output)
        ctx.save_for_forward(*x, mask, *output)

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        if g is None:
            return (None,) * 7
        wanted = ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        return *_Adjoint.apply(*ctx.saved_tensors, g, ctx.form, wanted), None, None

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        return _Derivative.apply(*ctx.saved_tensors, *changes[:5], ctx.form), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, fold = _folded(info.batch_size, in_dims, arguments)
        return tuple(fold.back(part) for part in _Value.apply(*folded)), (0, 0)


class _Derivative(torch.autograd.Function):
    """(q, k, v, bias, sinks, mask, o, rows, five changes, form) to the change of the output."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        point, (o, rows) = arguments[:6], arguments[6:8]
        *changes, form = arguments[8:]
        return _tiled(point, form).jvp(o, rows, Inputs(*changes))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.form = inputs[-1]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-1])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        if g is None:
            return (None,) * 14
        point, changes = ctx.saved_tensors[:8], ctx.saved_tensors[8:]
        needs = ctx.needs_input_grad
        in_inputs: Five = _Second.apply(*point, *changes, g, ctx.form, (needs[3], needs[4]))
        in_changes: Five = _Adjoint.apply(*point, g, ctx.form, (needs[11], needs[12]))
        given = [
            part if change is not None else None
            for part, change in zip(in_changes, changes, strict=True)
        ]
        return *in_inputs, None, None, None, *given, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(
            "fused attention has no forward derivative of a forward derivative: two levels of"
            " torch.func.jvp or jacfwd meet here. Take one of the two in reverse mode (jvp of grad,"
            ' grad of jvp, jacfwd of jacrev), or load the model with attn_implementation="eager".'
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, fold = _folded(info.batch_size, in_dims, arguments)
        return fold.back(_Derivative.apply(*folded)), 0


class _Adjoint(torch.autograd.Function):
    """(q, k, v, bias, sinks, mask, o, rows, g, form, wanted) to five gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        point, (o, rows, g, form, wanted) = arguments[:6], arguments[6:]
        return tuple(_tiled(point, form).vjp(o, rows, g, wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.form, ctx.wanted = inputs[-2:]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-2])
        ctx.save_for_forward(*inputs[:-2])

    @staticmethod
    def backward(ctx: Any, *changes: Any) -> Any:
        *point, g = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        in_inputs = _Second.apply(*point, *changes, g, ctx.form, wanted)
        in_g = _Derivative.apply(*point, *changes, ctx.form)
        return *in_inputs, None, None, None, in_g, None, None

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        *point, g = ctx.saved_tensors
        along = _Second.apply(*point, *changes[:5], g, ctx.form, ctx.wanted)
        if changes[8] is None:
            return along
        more = _Adjoint.apply(*point, changes[8], ctx.form, ctx.wanted)
        return tuple(
            None if one is None else one + other for one, other in zip(along, more, strict=True)
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, fold = _folded(info.batch_size, in_dims, arguments)
        return fold.gradients(_Adjoint.apply(*folded))


class _Second(torch.autograd.Function):
    """(q, k, v, bias, sinks, mask, o, rows, five changes, g, form, wanted) to five gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        point, (o, rows) = arguments[:6], arguments[6:8]
        *changes, g, form, wanted = arguments[8:]
        return tuple(_tiled(point, form).second(o, rows, Inputs(*changes), g, wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(_THIRD)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(_THIRD)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, fold = _folded(info.batch_size, in_dims, arguments)
        return fold.gradients(_Second.apply(*folded))


_THIRD = (
    "fused attention has first and second derivatives, and a third one was asked for. Load the"
    ' model with attn_implementation="eager" for it.'
)


class _Fold:
    """How a batched axis was folded into the batch, and the way back."""

    def __init__(self, size: int, batches: int, inputs: list[Tensor | None]) -> None:
        self.size, self.batches = size, batches
        self.single = [part is not None and part.shape[0] == 1 for part in inputs]

    def back(self, part: Tensor) -> Tensor:
        return part.unflatten(0, (self.size, self.batches))

    def gradients(self, parts: Five) -> tuple[Five, tuple[int | None, ...]]:
        """Gradients of what stood once for all batches are summed over them."""
        made = []
        for part, single in zip(parts, self.single, strict=True):
            wide = None if part is None else self.back(part)
            if wide is not None and single and self.batches > 1:
                wide = wide.sum(1, keepdim=True)
            made.append(wide)
        first, second, third, fourth, fifth = made
        return (first, second, third, fourth, fifth), tuple(
            None if part is None else 0 for part in made
        )


def _folded(size: int, in_dims: Any, arguments: Any) -> tuple[list[Any], _Fold]:
    """Every tensor with the vmapped axis folded into its batch; one that has no such axis, or one
    entry for all batches, is repeated (as a view where torch can).
    """
    natural = [
        part.movedim(dim, 0)[0] if isinstance(part, Tensor) and dim is not None else part
        for part, dim in zip(arguments, in_dims, strict=True)
    ]
    batches = natural[0].shape[0]
    folded = []
    for part, dim in zip(arguments, in_dims, strict=True):
        if not isinstance(part, Tensor):
            folded.append(part)
            continue
        wide = part.unsqueeze(0) if dim is None else part.movedim(dim, 0)
        folded.append(wide.expand(size, batches, *wide.shape[2:]).flatten(0, 1))
    return folded, _Fold(size, batches, natural[:5])
