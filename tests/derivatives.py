"""Second derivatives, another way than the package takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bend(function: Callable[[Tensor], Tensor], x: Tensor, u: Tensor) -> Tensor:
    """D^2F(x)[u, u], differentiable in u: both derivatives along u as the gradient, in v, of
    <v, F> differentiated in x. Forward mode inside forward mode takes seven times as long.
    """
    x = x.detach().requires_grad_()
    value = function(x)
    for _ in range(2):
        v = torch.zeros_like(value, requires_grad=True)
        (back,) = torch.autograd.grad(value, x, v, create_graph=True)
        (value,) = torch.autograd.grad(back, v, u, create_graph=True)
    return value
