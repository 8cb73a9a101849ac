"""What the doors of this room check, and the error when no theorem holds."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention
from attnscope.bounds.near.place import Around
from attnscope.bounds.registry import Theorem, theorems
from attnscope.validation import check_shape, check_tensor, described, is_dense

Number = float | np.number[Any]


class NoBound(ValueError):
    """No bound is proved for this layer; the message says why and what to do instead."""


def holding(attention: Attention, place: Around) -> list[Theorem]:
    """The theorems that hold at this place, at least one."""
    found = theorems(attention, place)
    if found:
        return found
    there = [one for one in theorems() if one.where is type(place)]
    names = list(dict.fromkeys(variant.name for one in there for variant in one.variants))
    if attention.heads.rotary is not None and attention.name in names:
        raise NoBound(
            "no bound on the movement of rotary heads over a ball is proved here: the gradient of a"
            " score changes with the distance of two tokens. Use a position bias"
            " (heads.position_bias) or positions added to the tokens."
        )
    raise NoBound(
        f"no bound on the movement of {attention.name} attention over a ball is proved here."
        f" Use {', '.join(names[:-1])} or {names[-1]} attention."
    )


def checked(
    attention: Attention, x: Tensor, eps: Number | Tensor
) -> tuple[Attention, Tensor, Tensor]:
    """What the doors have in common: float64 throughout, eps as a tensor."""
    if not isinstance(attention, Attention):
        raise TypeError(
            "attention must be an Attention, for example Softmax(heads), got"
            f" {described(attention)}."
        )
    check_tensor("x", x, "... n d")
    check_shape("x", x, (*x.shape[:-1], attention.heads.dim), "the dimension of the heads")
    bias = attention.heads.position_bias
    if bias is not None and x.shape[-2] > bias.shape[-1]:
        raise ValueError(
            f"the position bias of these heads serves sequences of at most {bias.shape[-1]} tokens,"
            f" got {x.shape[-2]}."
        )
    radius = _radius(eps, x)
    try:
        np.broadcast_shapes(radius.shape, x.shape[:-2])  # torch's own imports sympy
    except ValueError:
        raise ValueError(
            f"eps must broadcast against the stack axes {tuple(x.shape[:-2])} of x, got"
            f" {described(eps)}."
        ) from None
    return attention.to(torch.float64), x.to(torch.float64), radius


def checked_residual(residual: Number) -> float:
    if not _is_number(residual) or not math.isfinite(residual):
        raise ValueError(f"residual must be a finite number, got {described(residual)}.")
    return float(residual)


def _radius(eps: Number | Tensor, x: Tensor) -> Tensor:
    if isinstance(eps, Tensor):
        numbers = not eps.dtype.is_complex and eps.dtype != torch.bool and is_dense(eps)
    else:
        numbers = _is_number(eps)
    if not numbers:
        raise TypeError(f"eps must be a number or a tensor of numbers, got {described(eps)}.")
    try:
        radius = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    except (OverflowError, RuntimeError):  # a whole number above the range of float64
        radius = torch.tensor(torch.inf)
    if not bool((torch.isfinite(radius) & (radius > 0)).all()):
        raise ValueError(f"eps must be finite and above 0, got {described(eps)}.")
    return radius


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
