r"""`residual`: the Transformer itself, layer by layer, differentiable. As the step goes to zero it
converges to the flow, order one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Overflow
from attnscope.flows.trajectory import Measure, Outcome, Trajectory
from attnscope.measures import Gaussian, Particles
from attnscope.validation import check_kind, check_positive, described

Tokenwise = Callable[[Float[Tensor, "*stack n d"]], Float[Tensor, "*stack n d"]]
Part = TypeVar("Part")


def residual(
    attention: Attention | Sequence[Attention],
    mu: Measure,
    step: float,
    depth: int,
    *,
    pre_norm: Tokenwise | Sequence[Tokenwise] | None = None,
    post_norm: Tokenwise | Sequence[Tokenwise] | None = None,
    mlp: Tokenwise | Sequence[Tokenwise] | None = None,
) -> Trajectory[Measure]:
    r"""`depth` layers $x \leftarrow x + \tau\,\Gamma_\mu(x)$ with $\tau$ = `step`, all in torch:
    gradients pass through.

    With `pre_norm` N a layer reads the normalised tokens, $x + \tau\,\Gamma_{N_\#\mu}(N(x))$;
    `post_norm` normalises after each residual sum (a `Sphere()` serves); an `mlp` f adds $x
    \leftarrow x + \tau f(x)$, normalised alike. Each is one for all layers or a list, one per
    layer. A Gaussian maps exactly, $S \mapsto (I + \tau B) S (I + \tau B)^T$. Times are `step`
    times the layer.
    """
    check_kind("mu", mu, Particles, Gaussian)
    check_positive("step", step)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(f"depth must be a whole number of at least 1, got {depth!r}.")
    attentions = _per_layer("attention", attention, depth)
    parts = [
        _per_layer(name, part, depth)
        for name, part in (("pre_norm", pre_norm), ("post_norm", post_norm), ("mlp", mlp))
    ]
    if isinstance(mu, Gaussian) and any(part is not None for part in (pre_norm, post_norm, mlp)):
        raise ValueError(
            "norms and MLPs do not keep a Gaussian Gaussian. Use particles: gaussian.sample(n,"
            " generator=seed)."
        )
    states: list[Any] = [mu]
    outcome = Outcome("finished", step * depth, "went through all layers")
    for number, (layer, before, after, inner) in enumerate(
        zip(attentions, *parts, strict=True), start=1
    ):
        state = states[-1]
        moved: Particles | Gaussian | None
        try:
            moved = (
                _gaussian_layer(layer, state, step)
                if isinstance(state, Gaussian)
                else _layer(layer, state, step, before, after, inner)
            )
        except Overflow:
            moved = None
        if moved is None or not all(
            torch.isfinite(part).all()
            for part in ([moved.x] if isinstance(moved, Particles) else [moved.mean, moved.cov])
        ):
            reason = f"layer {number} of {depth} left the range of floating-point numbers"
            outcome = Outcome("blew up", step * (number - 1), reason)
            break
        states.append(moved)
    times = step * torch.arange(len(states), dtype=torch.float64)
    return Trajectory(times, tuple(states), (outcome,), len(states) - 1)


def _layer(
    attention: Attention,
    mu: Particles,
    step: float,
    before: Tokenwise | None,
    after: Tokenwise | None,
    mlp: Tokenwise | None,
) -> Particles:
    seen = mu if before is None else mu.at(before(mu.x))
    x = mu.x + step * attention(seen.x, seen)
    x = x if after is None else after(x)
    if mlp is not None:
        x = x + step * mlp(x if before is None else before(x))
        x = x if after is None else after(x)
    return mu.at(x)


def _gaussian_layer(attention: Attention, mu: Gaussian, step: float) -> Gaussian:
    affine = attention.affine(mu)
    mean = mu.mean + step * ((affine.matrix @ mu.mean[..., None])[..., 0] + affine.offset)
    moved = mu.any_factor() + step * affine.matrix @ mu.any_factor()
    return Gaussian.from_factor(mean, moved)


def _per_layer(name: str, part: Part | Sequence[Part], depth: int) -> list[Part]:
    if isinstance(part, Sequence) and not isinstance(part, str):
        if len(part) != depth:
            raise ValueError(
                f"{name} must be one for all layers or a list of depth = {depth}, got a list of"
                f" {len(part)}."
            )
        return list(part)
    if name == "attention" and not isinstance(part, Attention):
        raise TypeError(f"attention must be an Attention or a list of them, got {described(part)}.")
    return [part] * depth
