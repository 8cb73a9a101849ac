r"""Bounds on the parts around an attention that a tap sees: its norms and its residual.

$\|J_M J_f J_N\| \le \|J_M\|\|J_f\|\|J_N\|$ for norms N before and M after the attention, each at
the tokens that it reads; a residual adds 1. The norms are recognised by their values: a norm of
another form is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import Bounds
from attnscope.bounds.norm_layers import through_norm
from attnscope.models._parts import Part
from attnscope.models._points import Point
from attnscope.models._rebuilt import gap

if TYPE_CHECKING:
    from attnscope.models._base import Model

SAME = 1e-6
"""How far a norm may be from its formula, relative to its size: those of transformers compute in
float32 inside a model in float64.
"""


def part_bounds(
    model: Model, layer: int, part: Part, x: Float[Tensor, "n d"], found: Bounds
) -> Bounds:
    """Bounds on the attention of this layer turned into bounds on the part `norm+attention` or
    `residual`, at the stream x; the model is in float64.
    """
    if part not in ("norm+attention", "residual"):
        raise ValueError(f"theorems cover attention, norm+attention and residual, got {part!r}.")
    seen = model.running(layer, len(x)).anatomy
    with torch.no_grad():
        own = model.function(layer, part)(x)
        read = model.read(layer, x[None])[0]
        written = model.function(layer, "attention")(read)
        value, bounds = written, found
        if seen.reads is not None:
            before = _recognised(model, layer, seen.reads, x, read)
            bounds = through_norm(bounds, before, x, norm_first=True, residual=False)
        if seen.normed and seen.added is not None:
            value = model.function(layer, "norm+attention")(x)
            after = _recognised(model, layer, seen.added, written, value)
            bounds = through_norm(bounds, after, written, norm_first=False, residual=False)
        if seen.post_norm or part == "residual":
            last, value = None, x + value
            if part == "norm+attention" and seen.middle is not None:
                last = _recognised(model, layer, seen.middle, value, own)
            bounds = through_norm(bounds, last, value, norm_first=False, residual=True)
            value = own if last is not None else value
    if gap(value, own) > SAME:
        raise ValueError(
            f"{part} of layer {layer} of {model.name} is more than its attention, norms and"
            " residual, so no theorem covers it."
        )
    return bounds


def _recognised(
    model: Model, layer: int, at: Point, x: Float[Tensor, "n d"], value: Float[Tensor, "n d"]
) -> nn.Module:
    """A LayerNorm or RMSNorm of torch that makes this value of x, with the weights of the module
    there; refused where there is none.
    """
    # Tokens of mean zero would not tell the two kinds apart: the module is asked on others too.
    other = 1 + torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x)
    for norm in _candidates(at.module):
        if gap(norm(x), value) <= SAME and gap(norm(other), at.module(other)) <= SAME:
            return norm
    raise ValueError(
        f"the norm beside the attention of layer {layer} of {model.name}"
        f" ({type(at.module).__name__}) is neither a LayerNorm nor an RMSNorm, so no theorem covers"
        " it."
    )


def _candidates(module: nn.Module) -> Iterator[nn.Module]:
    """Norms that this module may be: with its gain, or with one plus it (Gemma)."""
    own: Any = module
    gain, bias = getattr(own, "weight", None), getattr(own, "bias", None)
    eps = getattr(own, "variance_epsilon", None) or getattr(own, "eps", None)
    if not isinstance(gain, Tensor) or gain.ndim != 1 or not isinstance(eps, float):
        return
    for weight in (gain.detach().double(), 1 + gain.detach().double()):
        kinds: tuple[Any, ...] = (nn.LayerNorm, nn.RMSNorm) if bias is None else (nn.LayerNorm,)
        for kind in kinds:
            made = kind(len(weight), eps=eps, dtype=torch.float64, device=weight.device)
            made.weight.data = weight
            if isinstance(made, nn.LayerNorm):
                made.bias.data = (
                    torch.zeros_like(weight) if bias is None else bias.detach().double()
                )
            yield made
