r"""Projected gradient attack in the l2 ball [madry18]: a lower bound on what a certificate must not
exceed.

From several starts, steps $\delta \leftarrow \Pi(\delta + \alpha_t \nabla\ell/|\nabla\ell|)$ on the
margin loss $\ell = \max_{j \ne y} z_j - z_y$, $\Pi$ the projection onto $|\delta| \le \varepsilon$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.validation import as_generator, brief, check_positive, check_tensor, described

ROWS = 512
"""Images times starts behind one call of the function."""


@final
@dataclass(frozen=True, eq=False)
class Attacked:
    """The worst image found in each ball. `succeeded` is what a second evaluation of the function
    says of `x`.

    `gap` is $z_y - \\max_{j \\ne y} z_j$ there; an attack succeeds when it is not positive. `blind`
    marks images whose gradient was zero or not finite at every start and step: for these the attack
    is a random search, and its failure says little.
    """

    x: Float[Tensor, "b ..."]
    succeeded: Bool[Tensor, " b"]
    gap: Float[Tensor, " b"]
    blind: Bool[Tensor, " b"]

    __repr__ = brief


def pgd(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "b ..."],
    labels: Int[Tensor, " b"],
    eps: float | Float[Tensor, " b"],
    steps: int = 100,
    restarts: int = 5,
    seed: int | torch.Generator = 0,
    box: tuple[float, float] | None = None,
    search: Callable[[Tensor], Tensor] | None = None,
) -> Attacked:
    """Attack images x within $|x' - x|_2 \\le$ eps (one radius, or one per image); the first start
    is x itself, the others are random.

    `function` gives logits (b, classes). With `box` the attacked images stay between two values,
    else they are free. `search` is a copy of the function in single precision to look for the worst
    image with; what it finds is brought to the sphere and judged by `function`.
    """
    radius = _checked(function, x, labels, eps, steps, restarts, box)
    generator = as_generator(seed, x.device)
    size = max(1, ROWS // restarts)
    parts = [
        _attack(
            function,
            search,
            x[i : i + size],
            labels[i : i + size],
            radius[i : i + size],
            steps,
            restarts,
            generator,
            box,
        )
        for i in range(0, len(x), size)
    ]
    return Attacked(
        x=torch.cat([part.x for part in parts]),
        succeeded=torch.cat([part.succeeded for part in parts]),
        gap=torch.cat([part.gap for part in parts]),
        blind=torch.cat([part.blind for part in parts]),
    )


def _attack(
    function: Callable[[Tensor], Tensor],
    search: Callable[[Tensor], Tensor] | None,
    x: Tensor,
    labels: Tensor,
    radius: Tensor,
    steps: int,
    restarts: int,
    generator: torch.Generator,
    box: tuple[float, float] | None,
) -> Attacked:
    """All starts of these images at once; every iterate is a candidate."""
    given, looked = (x, function) if search is None else (x.float(), search)
    images = given.repeat(restarts, *(1,) * (x.ndim - 1))
    y, ball = labels.repeat(restarts), radius.repeat(restarts)
    delta = _spread(
        torch.randn(images.shape, dtype=x.dtype, device=x.device, generator=generator).to(given),
        ball,
    )
    delta[: len(x)] = 0
    delta = _project(images, delta, ball, box)
    best, lowest = torch.zeros_like(delta), torch.full_like(ball, float("inf"))
    seen = torch.zeros_like(ball, dtype=torch.bool)
    for step in range(steps + 1):
        gap, gradient = _descend(looked, images + delta, y)
        better = gap < lowest
        best = torch.where(_like(better, best), delta, best)
        lowest = torch.where(better, gap, lowest)
        usable = _norms(gradient) > 0
        seen |= usable
        noise = torch.randn(images.shape, dtype=given.dtype, device=x.device, generator=generator)
        length = ball * max(1 - step / steps, 0.02) / 2
        delta = _project(
            images,
            delta - _spread(torch.where(_like(usable, gradient), gradient, noise), length),
            ball,
            box,
        )
    lowest, best = lowest.reshape(restarts, -1), best.reshape(restarts, *x.shape)
    which = lowest.argmin(0)
    moved = best[which, torch.arange(len(x), device=x.device)].to(x)
    if search is not None:
        moved = _outward(x, moved, radius, box)
    found = x + moved
    with torch.no_grad():
        gap = _gap(function(found), labels)
    inside = _norms(found - x) <= radius
    return Attacked(found, (gap <= 0) & inside, gap, ~seen.reshape(restarts, -1).any(0))


def _descend(
    function: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The gap and its gradient; a gap or gradient that is not finite counts as no information."""
    at = x.detach().requires_grad_()
    with torch.enable_grad():
        gap = _gap(function(at), labels)
        if not gap.requires_grad:
            raise ValueError(
                "the function has no gradient in x. Does it call detach(), no_grad() or argmax on"
                " the way?"
            )
        (gradient,) = torch.autograd.grad(gap.sum(), at)
    finite = gradient.isfinite().flatten(1).all(1)
    return gap.detach().nan_to_num(nan=float("inf")), torch.where(
        _like(finite, gradient), gradient, 0.0
    )


def _gap(logits: Tensor, labels: Tensor) -> Tensor:
    own = logits.gather(1, labels[:, None])
    return own[:, 0] - logits.scatter(1, labels[:, None], float("-inf")).amax(1)


def _project(x: Tensor, delta: Tensor, radius: Tensor, box: tuple[float, float] | None) -> Tensor:
    """First into the box, then towards x: the box is convex and holds x, so the second step stays
    inside it.
    """
    if box is not None:
        delta = (x + delta).clamp(*box) - x
    inside = (
        1 - torch.finfo(x.dtype).eps ** 0.5
    )  # so that rounding of x + delta does not leave the ball
    return delta * _like(
        (inside * radius / _norms(delta).clamp(min=1e-300)).clamp(max=1), delta
    ).to(delta.dtype)


def _outward(x: Tensor, delta: Tensor, radius: Tensor, box: tuple[float, float] | None) -> Tensor:
    """A movement that single precision kept a little inside the sphere, brought to it."""
    near = _norms(delta) > (1 - 1e-3) * radius
    return _project(x, torch.where(_like(near, delta), 1.01 * delta, delta), radius, box)


def _spread(direction: Tensor, length: Tensor) -> Tensor:
    norm = _norms(direction)
    return direction * _like(torch.where(norm > 0, length / norm, 0.0), direction).to(
        direction.dtype
    )


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)


def _like(per_image: Tensor, x: Tensor) -> Tensor:
    return per_image.reshape(-1, *(1,) * (x.ndim - 1))


def _checked(
    function: object,
    x: object,
    labels: object,
    eps: object,
    steps: object,
    restarts: object,
    box: tuple[float, float] | None,
) -> Tensor:
    """Refuse what does not fit; return one radius per image in float64."""
    if not callable(function):
        raise TypeError(
            f"function must map images (b, ...) to logits (b, classes), got {described(function)}."
        )
    check_tensor("x", x, "... b")
    assert isinstance(x, Tensor)
    if x.ndim < 2:
        raise ValueError(
            f"x must have shape (b, ...), a batch of images, got {described(x)}. Use x[None] for"
            " one."
        )
    for name, value in (("steps", steps), ("restarts", restarts)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {described(value)}."
            )
    if isinstance(eps, Tensor):
        check_tensor("eps", eps, "b")
        if eps.shape != x.shape[:1] or not (eps > 0).all():
            raise ValueError(
                f"eps must be one number above 0, or one for each of the {len(x)} images, got"
                f" {described(eps)}."
            )
    else:
        check_positive("eps", eps)
    if box is not None and not (box[0] < box[1] and x.min() >= box[0] and x.max() <= box[1]):
        raise ValueError(
            f"box must be two values (low, high) that hold x, from {x.min():.6g} to {x.max():.6g},"
            f" got {box!r}."
        )
    with torch.no_grad():
        logits = function(x[:1])
    if (
        not isinstance(logits, Tensor)
        or logits.ndim != 2
        or logits.shape[0] != 1
        or logits.shape[1] < 2
    ):
        raise ValueError(
            f"function must give logits (b, classes) of at least 2 classes, got {described(logits)}"
            " for one image."
        )
    check_labels(labels, len(x), logits.shape[1])
    return torch.as_tensor(eps, dtype=torch.float64, device=x.device).expand(len(x))


def check_labels(labels: object, images: int, classes: int) -> None:
    """Refuse anything but one class number per image."""
    if (
        not isinstance(labels, Tensor)
        or labels.dtype.is_floating_point
        or labels.dtype == torch.bool
        or labels.shape != (images,)
    ):
        raise ValueError(
            f"labels must be whole numbers, one for each of the {images} images, got"
            f" {described(labels)}."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels must lie between 0 and {classes - 1}, as the network has {classes} classes; "
            f"got values from {int(labels.min())} to {int(labels.max())}."
        )
