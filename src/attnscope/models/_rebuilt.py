"""Is what the weights spell what the modules compute? Adapters, hooks and parametrisations turn the
same weights into another map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.measures import Particles
from attnscope.models._parts import Part

if TYPE_CHECKING:
    from attnscope.models._base import Model

ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-5}
"""How far the two may differ, relative to the largest entry, and still be one map. Hugging Face
evaluates some softmaxes and norms in float32 whatever the dtype, which moves the output by 1e-7 to
1e-6 of its size; adapters and hooks that anyone would notice move it by far more.
"""
TOKENS = 5


def difference(
    model: Model,
    layer: int,
    at: Float[Tensor, "*stack n d"] | None = None,
    part: Part = "attention",
) -> str:
    """How the attention and the norm of this layer differ from what their weights spell, on random
    tokens and at those of a part; empty if they do not.
    """
    n = TOKENS if next(model.module.parameters()).is_meta else model.usual_length
    draw = torch.randn(2, n, model.dim, generator=torch.Generator().manual_seed(layer))
    x = draw.to(device=model.device, dtype=model.dtype)
    if x.is_meta:
        return ""
    try:
        with torch.no_grad():
            read = model.read(layer, x)
            checks: list[tuple[Part, Tensor]] = [("attention", read), ("norm+attention", x)]
            if at is not None:
                checks.append((part, at.detach()))
            off = max(
                gap(_spelled(model, layer, which, tokens), model.function(layer, which)(tokens))
                for which, tokens in checks
            )
    except (AttributeError, RuntimeError, TypeError) as error:
        # Quantised or wrapped projections have no weight that could be read as a matrix.
        return (
            f"the weights of layer {layer} of {model.name} cannot be read as heads"
            f" ({str(error).splitlines()[0]})"
        )
    if off <= ROUNDING[model.dtype]:
        return ""
    return (
        f"the modules of layer {layer} of {model.name} compute something else than their weights"
        f" spell (they differ by {off:.0%}): there is an adapter, a hook or a parametrisation, or a"
        " window shorter than the sequence"
    )


def radius_holds(model: Model, layer: int) -> bool:
    """Whether the attention reads what its input norm makes, seen on a sample of the model."""
    n = min(TOKENS, model.positions)
    inputs = model.sample(n)
    if inputs is None or inputs.is_meta:
        return True
    norm, came = model.input_norm(layer), []
    running = model.running(layer, model.usual_length)  # seen before our hook is part of it
    handle = norm.register_forward_pre_hook(lambda _, args: came.append(args[0]), prepend=True)
    try:
        with torch.no_grad():
            x = model.stream(inputs, layer)
            with model.plainly():
                read = running.entry("attention", x)
    finally:
        handle.remove()
    with torch.no_grad():
        return any(
            value.shape == read.shape
            and gap(norm_value(norm, value), read) <= ROUNDING[model.dtype]
            for value in came
        )


def largest_norm(norm: nn.Module) -> float:
    r"""A proved bound on what a norm layer makes: $\sqrt d \max|g| + \|b\|$ for LayerNorm, $\sqrt d
    \max|g|$ for RMSNorm.
    """
    plain: Any = norm
    gain, bias = plain.weight.detach().double(), getattr(norm, "bias", None)
    shift = 0.0 if bias is None else float(bias.detach().double().norm())
    return float(gain.numel() ** 0.5 * gain.abs().max()) + shift


def norm_value(norm: nn.Module, x: Tensor) -> Tensor:
    """LayerNorm and RMSNorm by their formulas from their weights, in the dtype of x; another norm
    by itself.
    """
    plain: Any = norm
    gain, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if isinstance(norm, nn.LayerNorm):
        return nn.functional.layer_norm(
            x, plain.normalized_shape, plain.weight, plain.bias, plain.eps
        )
    if isinstance(gain, Tensor) and isinstance(eps, float):
        return gain * (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt())
    return norm(x)


def _spelled(model: Model, layer: int, part: Part, x: Tensor) -> Tensor:
    """A part up to the residual as the weights say it."""
    attention, norm = model.from_weights(layer), model.norm(layer)
    if part == "attention":
        return attention(x, Particles(x))
    if model.pre_norm:
        read = norm_value(norm, x)
        added = attention(read, Particles(read))
        return x + added if part == "residual" else added
    moved = x + attention(x, Particles(x))
    return moved if part == "residual" else norm_value(norm, moved)


def gap(ours: Tensor, theirs: Tensor) -> float:
    size = float(theirs.abs().max())
    if not torch.isfinite(ours).all() or not torch.isfinite(theirs).all() or size == 0:
        return 0.0 if torch.equal(ours, theirs) else float("inf")
    return float((ours - theirs).abs().max()) / size
