"""Jacobians of attention as linear operators, and their largest singular values with brackets."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.operators.attention import of_attention
from attnscope.operators.operator import LinearOperator, of_function
from attnscope.operators.several import SingularValues, singular_values
from attnscope.operators.spectrum import SpectralNorm, spectral_norm
from attnscope.operators.starts import Near
from attnscope.validation import described

__all__ = [
    "LinearOperator",
    "Near",
    "SingularValues",
    "SpectralNorm",
    "jacobian",
    "singular_values",
    "spectral_norm",
]


def jacobian(
    map: Attention | Callable[[Tensor], Tensor],
    at: Particles | Tensor,
    stack: int = 0,
    double: Callable[[Tensor], Tensor] | None = None,
) -> LinearOperator:
    r"""The derivative of an attention layer $X \mapsto \Gamma_{\mu(X)}(X)$ at a measure, or of any
    function at a tensor.

    For a measure the metric is that of $L^2(\mu)$, and a stack of measures gives a stack of
    operators. For a function the first `stack` axes of the tensor hold independent problems, and
    `double` is the same function on float64 tensors: with it the lower bounds of a float32 function
    are exact.
    """
    if isinstance(map, Attention):
        if not isinstance(at, Particles):
            raise TypeError(
                f"the Jacobian of an attention is taken at a Particles, got {described(at)}. Use"
                " Particles(x)."
            )
        return of_attention(map, at)
    if not callable(map) or not isinstance(at, Tensor):
        raise TypeError(
            "jacobian takes an attention and a Particles, or a function and a tensor, got"
            f" {described(map)} and {described(at)}."
        )
    return of_function(map, at, stack, double)
