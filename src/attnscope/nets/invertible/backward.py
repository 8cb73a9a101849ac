"""The backward pass that stores no activations: inputs of layers are found again from their outputs
by the inverse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnscope.nets.invertible.layer import tensors, with_tensors
from attnscope.nets.invertible.step import Step


def reversible(x: Tensor, steps: list[Step]) -> Tensor:
    """The stack at x. Its graph holds the output and the weights, whatever the depth."""
    parts = [tensors(step.attention) for step in steps]
    return _Reversible.apply(
        x,
        [step.detached() for step in steps],
        *(tensor for part in parts for tensor in part.values()),
    )


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: list[Step], *weights: Tensor) -> Tensor:
        for step in steps:
            x = x + step.move(x)
        ctx.steps = steps
        ctx.save_for_backward(x, *weights)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        found: list[Tensor | None] = [None] * len(weights)
        end = len(weights)
        for step in reversed(ctx.steps):
            names = list(tensors(step.attention))
            places = range(end - len(names), end)
            end -= len(names)
            y = step.invert(y).x
            grad, of_weights = _through(
                step, y, grad, dict(zip(names, places, strict=True)), weights, wanted
            )
            for place, part in of_weights.items():
                found[place] = part
        return (grad if ctx.needs_input_grad[0] else None, None, *found)


def _through(
    step: Step,
    x: Tensor,
    grad: Tensor,
    places: dict[str, int],
    weights: list[Tensor],
    wanted: tuple[bool, ...],
) -> tuple[Tensor, dict[int, Tensor | None]]:
    """One layer backwards: the gradient at its input, and those of its weights by their places in
    the list.
    """
    leaves = {
        name: weights[place].detach().requires_grad_(wanted[place])
        for name, place in places.items()
    }
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        out = replace(step, attention=with_tensors(step.attention, leaves)).move(start)
    asked = [name for name, place in places.items() if wanted[place]]
    at_input, *rest = torch.autograd.grad(
        out, [start, *(leaves[name] for name in asked)], grad, allow_unused=True
    )
    total = grad if at_input is None else grad + at_input
    return total, {places[name]: part for name, part in zip(asked, rest, strict=True)}
