r"""Attacks on a layer of a model: tokens moved along the top singular direction, alone or after
every token was written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks.splitting import split
from attnscope.measures import Particles
from attnscope.models._base import Model
from attnscope.models._jacobian import part_jacobian
from attnscope.models._parts import Part
from attnscope.models._perturbation import Duplication, Perturbation, Step
from attnscope.models.generic import Generic
from attnscope.operators import LinearOperator, spectral_norm
from attnscope.validation import check_positive, described

RELATIVE_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Default sizes of the move, in units of the RMS norm of a token."""


def perturb(
    model: Model, layer: int, source: str | Tensor, eps: float | Sequence[float] | None, part: Part
) -> Perturbation:
    """`Model.perturb`."""
    x = model.tokens(source, layer, part)
    if x.ndim != 2:
        raise ValueError(
            f"perturb takes one sequence, got {described(source)}. Call it once for each."
        )
    sizes = _sizes(eps, x)
    op = part_jacobian(model, layer, part, x)
    found = spectral_norm(op, tol=1e-8)
    right, left = found.right, found.left
    function = model.function(layer, part)
    duplication, refusal = None, None
    try:
        _learn_twice(model, layer, part, source)
        duplication = _duplicated(model, layer, part, x, sizes)
    except ValueError as reason:
        refusal = str(reason)
    return Perturbation(
        layer=layer,
        part=part,
        sigma=float(found.lower),
        direction=right,
        carried=right.square().sum(-1),
        received=left.square().sum(-1),
        steps=_steps(function, x, right, op, sizes),
        duplication=duplication,
        refusal=refusal,
    )


def _learn_twice(model: Model, layer: int, part: Part, source: str | Tensor) -> None:
    """A network of unknown structure must run twice as many tokens once to show the mask it uses
    for them.
    """
    if isinstance(model, Generic):
        given = model.encode(source) if isinstance(source, str) else source
        if given.ndim > 2:
            raise ValueError(f"{model.name} reads images, whose tokens cannot be written twice.")
        model.tokens(given.repeat_interleave(2, dim=0), layer, part)


def _duplicated(
    model: Model, layer: int, part: Part, x: Float[Tensor, "n d"], sizes: list[float]
) -> Duplication:
    twice = x.repeat_interleave(2, dim=0)
    op = part_jacobian(model, layer, part, twice)
    together, apart = (spectral_norm(op @ _copies(x, sign), tol=1e-8) for sign in (1.0, -1.0))
    function = model.function(layer, part)
    move_way, split_way = _written(together.right, 1.0), _written(apart.right, -1.0)
    known = part == "attention" and model.rebuilt(layer, x) and len(x) > 1
    return Duplication(
        move=float(together.lower),
        split=float(apart.lower),
        token=int(apart.right.square().sum(-1).argmax()),
        move_steps=_steps(function, twice, move_way, op, sizes),
        split_steps=_steps(function, twice, split_way, op, sizes),
        law=split(model.attention(layer), Particles(x)) if known else None,
    )


def _copies(x: Float[Tensor, "n d"], sign: float) -> LinearOperator:
    r"""$z \mapsto (z_i, \pm z_i)_i/\sqrt2$: moves of the copies that keep together or go apart."""
    n, d = x.shape
    return LinearOperator(
        mv=lambda z: _written(z, sign),
        rmv=lambda z: (z[::2] + sign * z[1::2]) / 2**0.5,
        in_shape=(n, d),
        out_shape=(2 * n, d),
        dtype=x.dtype,
        device=x.device,
        exact=None if x.dtype == torch.float64 else lambda: _copies(x.double(), sign),
    )


def _written(z: Float[Tensor, "n d"], sign: float) -> Float[Tensor, "n2 d"]:
    return torch.stack([z, sign * z], dim=1).flatten(0, 1) / 2**0.5


def _steps(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "n d"],
    way: Float[Tensor, "n d"],
    op: LinearOperator,
    sizes: list[float],
) -> tuple[Step, ...]:
    """The move of every size along the direction, in the sense that changes the output more."""
    way = way.to(x.dtype)
    with torch.no_grad():
        start = function(x).double()
        slope = op.mv(way).double()
        predicted = float(torch.linalg.vector_norm(slope))
        found = []
        for size in sizes:
            both = []
            for signed in (size, -size):
                change = function(x + signed * way).double() - start
                error = float(torch.linalg.vector_norm(change - signed * slope))
                both.append(
                    (
                        float(torch.linalg.vector_norm(change)),
                        error / (size * predicted) if predicted > 0 else float(error > 0),
                    )
                )
            actual, error = max(both)
            found.append(Step(size, size * predicted, actual, error))
    return tuple(found)


def _sizes(eps: float | Sequence[float] | None, x: Float[Tensor, "n d"]) -> list[float]:
    if eps is None:
        typical = float(x.double().square().sum(-1).mean().sqrt())
        return [typical * factor for factor in RELATIVE_STEPS]
    sizes = list(eps) if isinstance(eps, Sequence) else [eps]
    if not sizes:
        raise ValueError("eps must be a number above 0 or several of them, got none.")
    for size in sizes:
        check_positive("eps", size)
    return [float(size) for size in sizes]
