"""`certify`: verdicts and radii for the images of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from attnscope.attacks.projected import check_labels
from attnscope.certification.branches import certified
from attnscope.certification.certificate import ASSUMPTIONS, Certificate
from attnscope.certification.chain import Link, chain
from attnscope.certification.closer import Closer
from attnscope.certification.containers import NotTheChain
from attnscope.certification.exact import exact, follow
from attnscope.certification.radii import Radii
from attnscope.certification.reading import is_composite, taken_apart
from attnscope.certification.telescope import METHODS, Clean
from attnscope.validation import check_positive, check_tensor, described

ENTRIES = 2**24
"""Entries of the gradients of all classes at all layers held at once, in images times that."""
AGREEMENT = 1e-8
"""How closely, for rounding, the network must agree with its layers one after the other."""

Number = float | np.number[Any] | Tensor
"""A number; a tensor has one entry."""


@overload
def certify(
    network: nn.Module,
    images: Tensor,
    eps: float | np.number[Any],
    labels: Tensor | None = None,
    *,
    bisections: int = 0,
) -> list[Certificate]: ...


@overload
def certify(
    network: nn.Module,
    images: Tensor,
    eps: Sequence[Number],
    labels: Tensor | None = None,
    *,
    bisections: int = 0,
) -> list[list[Certificate]]: ...


@overload
def certify(
    network: nn.Module,
    images: Tensor,
    eps: Tensor | NDArray[Any],
    labels: Tensor | None = None,
    *,
    bisections: int = 0,
) -> list[Certificate] | list[list[Certificate]]: ...


def certify(
    network: nn.Module,
    images: Float[Tensor, "b ..."],
    eps: Number | Sequence[Number] | NDArray[Any],
    labels: Int[Tensor, " b"] | None = None,
    *,
    bisections: int = 0,
) -> list[Certificate] | list[list[Certificate]]:
    """Which images keep their class under every perturbation of l2 norm at most eps: one
    certificate per image, proved.

    Args:
        network: in evaluation mode, a chain of layers that keep the contract of
            `attnscope.layers.Layer`, and of torch's own; or such layers in residual branches:
            `nn.TransformerEncoder`, Hugging Face's ViT and DeiT classifiers,
            `attnscope.layers.Residual`. It is copied, and refused when it does anything else.
        images: pixels in [0, 1], or embedded tokens (b, n, d) of any size for a network that begins
            with a layer on tokens.
        eps: one radius, or several; with several there is one list of certificates for each.
        labels: the classes to certify; those that the network predicts by default.
        bisections: so many further radii are tried for each image between the largest that was
            proved and the largest that can be.

    Returns:
        One `Certificate` per image, or a list of them for each eps.
    """
    several, single = _checked_eps(eps)
    if isinstance(bisections, bool) or not isinstance(bisections, int) or bisections < 0:
        raise ValueError(
            f"bisections must be a whole number of at least 0, got {described(bisections)}."
        )
    check_network(network)
    check_tensor("images", images, "... b")
    with torch.inference_mode(False), torch.no_grad():
        copied = exact(network)
        if is_composite(copied):
            found = certified(copied, taken_apart(copied), images, several, labels, bisections)
        else:
            found = _certified(copied, chain(copied), images, several, labels, bisections)
    return found[0] if single else found


def _certified(
    network: nn.Module,
    links: list[Link],
    images: Float[Tensor, "b ..."],
    several: list[float],
    labels: Int[Tensor, " b"] | None,
    bisections: int,
) -> list[list[Certificate]]:
    """As many images at a time as memory allows; the first shows how large they get."""
    _check_images(images, links)
    found: list[list[Certificate]] = [[] for _ in several]
    first = _clean(network, links, images[:1].to(torch.float64, copy=True))
    entries = first.logits.shape[1] * sum(value.numel() for value in first.values)
    size = max(1, ENTRIES // entries)
    for at in range(0, len(images), size):
        part = images[at : at + size].to(torch.float64, copy=True)
        clean = _clean(network, links, part)
        clean.aim(
            clean.logits.argmax(1)
            if labels is None
            else _checked_labels(labels, images, clean)[at : at + size]
        )
        farthest = _farthest(clean)
        reach = torch.full_like(farthest, max(several))
        if bisections:
            reach = torch.maximum(reach, farthest)
        _check_elsewhere(network, links, part, reach)
        for made, more in zip(
            found, _certificates(Closer(links, clean), farthest, several, bisections), strict=True
        ):
            made += more
    return found


def _farthest(clean: Clean) -> Float[Tensor, " b"]:
    """Where a bisection starts: where the linear part alone eats the margin, and never beyond the
    cube that holds the input.
    """
    x = clean.values[0].flatten(1)
    return torch.minimum(clean.limits(), math.sqrt(x.shape[1]) * x.abs().amax(1).clamp(min=1.0))


def _certificates(
    closer: Closer, farthest: Float[Tensor, " b"], several: list[float], bisections: int
) -> list[list[Certificate]]:
    """Radii from the largest down, so that an image certified at one is not tried at smaller
    ones.
    """
    clean, radii = closer.clean, Radii(closer)
    verdicts: dict[float, tuple[list[bool], list[int]]] = {}
    for eps in sorted(set(several), reverse=True):
        radii.attempt(torch.full_like(farthest, eps))
        verdicts[eps] = ((radii.radius >= eps).tolist(), radii.method.tolist())
    radii.search(farthest, bisections)
    margins, proved = clean.margins.amin(0).tolist(), radii.radius.tolist()
    names = clean.labels.tolist()
    return [
        [
            Certificate(
                names[i],
                eps,
                verdict,
                proved[i],
                margins[i],
                METHODS[how if verdict else 0],
                assumptions=ASSUMPTIONS,
            )
            for i, (verdict, how) in enumerate(zip(*verdicts[eps], strict=True))
        ]
        for eps in several
    ]


def _clean(network: nn.Module, links: list[Link], images: Tensor) -> Clean:
    try:
        clean = Clean(links, images)
        whole = follow(network, links, images)
    except NotTheChain:
        raise
    except (RuntimeError, ValueError) as failure:
        raise ValueError(
            f"images of shape {tuple(images.shape)} do not fit the network: {failure}"
        ) from failure
    logits = clean.logits
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(
            "the network must end in logits (b, classes) of at least 2 classes, it gives shape"
            f" {tuple(logits.shape)}."
        )
    if not logits.isfinite().all():
        raise ValueError(
            "the network gives logits that are not finite for these images. Look at its weights."
        )
    _check_agreement(whole, logits)
    return clean


def _check_elsewhere(
    network: nn.Module, links: list[Link], images: Tensor, reach: Float[Tensor, " b"]
) -> None:
    """Follow the network at a random point of the ball around every image."""
    generator = torch.Generator().manual_seed(len(images))
    away = torch.randn(images.shape, dtype=torch.float64, generator=generator).flatten(1)
    share = torch.rand(len(images), 1, dtype=torch.float64, generator=generator)
    away = (share * away / torch.linalg.vector_norm(away, dim=1, keepdim=True)).to(images.device)
    moved = images + (reach[:, None] * away).reshape(images.shape)
    whole, made = follow(network, links, moved), moved
    for link in links:
        made = link.layer(made)
    _check_agreement(whole, made)


def _check_agreement(whole: Tensor, chained: Tensor) -> None:
    if whole.shape != chained.shape or not torch.allclose(
        whole, chained, rtol=AGREEMENT, atol=AGREEMENT, equal_nan=True
    ):
        raise NotTheChain("at an image, or near one, its answer is another")


def _checked_eps(eps: object) -> tuple[list[float], bool]:
    """The radii as plain numbers, and whether there was just one."""
    if isinstance(eps, Tensor | np.ndarray | np.generic):
        eps = eps.tolist()
    single = isinstance(eps, str) or not isinstance(eps, Sequence)
    several: list[Any] = [eps] if single else list(eps)  # type: ignore[call-overload]
    if not several:
        raise ValueError("eps must be a number above 0, or several of them, got none.")
    plain = [
        one.item() if isinstance(one, Tensor | np.ndarray | np.generic) and one.ndim == 0 else one
        for one in several
    ]
    for one in plain:
        check_positive("eps", one)
    return [float(one) for one in plain], single


def check_network(network: object) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"network must be an nn.Module made of layers with bounds, got {described(network)}."
        )
    if any(part.training for part in network.modules()):
        raise ValueError(
            "the network is in training mode, where dropout changes its answers. Call"
            " network.eval() first."
        )
    for name, weights in [*network.named_parameters(), *network.named_buffers()]:
        if weights.is_floating_point() and not weights.detach().isfinite().all():
            raise ValueError(
                f"the weights {name} of the network hold NaN or infinite entries, so nothing can be"
                " certified."
            )


def _check_images(images: Tensor, links: list[Link]) -> None:
    if images.ndim < 2:
        raise ValueError(
            f"images must have shape (b, ...), a batch, got {described(images)}. Use image[None]"
            " for one."
        )
    if (images.min() < 0 or images.max() > 1) and not _on_tokens(images, links[0]):
        raise ValueError(
            f"pixels must lie in [0, 1], got values from {float(images.min()):.12g} to"
            f" {float(images.max()):.12g}. Divide by 255, or undo a normalisation and put it into"
            " the network."
        )


def _on_tokens(images: Tensor, first: Link) -> bool:
    """Whether the network begins with a layer on tokens (b, n, d), which are no pixels."""
    if images.ndim != 3:
        return False
    x = images[:1].to(torch.float64, copy=True)
    eps = torch.ones(1, dtype=torch.float64, device=x.device)
    found = first.over(x, eps, eps[:, None].expand(1, x.shape[1]))
    return found.budget is not None and found.cut is None


def _checked_labels(labels: object, images: Tensor, clean: Clean) -> Tensor:
    check_labels(labels, len(images), clean.logits.shape[1])
    assert isinstance(labels, Tensor)
    return labels.to(clean.logits.device, torch.int64)
