"""`certify`: verdicts and radii for the images of a batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attacks.pgd import check_labels
from attnscope.certification.certificate import ASSUMPTIONS, Certificate
from attnscope.certification.layers import Layer, chain
from attnscope.certification.telescope import METHODS, Clean
from attnscope.validation import check_positive, check_tensor, described

ENTRIES = 2**24
"""Entries of the gradients of all classes at all layers held at once, in images times that."""


@overload
def certify(
    network: nn.Module,
    images: Tensor,
    eps: float,
    labels: Tensor | None = None,
    *,
    bisections: int = 0,
) -> list[Certificate]: ...


@overload
def certify(
    network: nn.Module,
    images: Tensor,
    eps: Sequence[float],
    labels: Tensor | None = None,
    *,
    bisections: int = 0,
) -> list[list[Certificate]]: ...


def certify(
    network: nn.Module,
    images: Float[Tensor, "b ..."],
    eps: float | Sequence[float],
    labels: Int[Tensor, " b"] | None = None,
    *,
    bisections: int = 0,
) -> list[Certificate] | list[list[Certificate]]:
    """Which images keep their class under every perturbation of l2 norm at most eps: one
    certificate per image, proved.

    With several eps there is one list of certificates for each. `labels` are the classes to certify
    (default: those that the network predicts). `bisections` further radii are tried for each image
    between the largest that was proved and the largest that can be.
    """
    several = _checked_eps(eps)
    if isinstance(bisections, bool) or not isinstance(bisections, int) or bisections < 0:
        raise ValueError(
            f"bisections must be a whole number of at least 0, got {described(bisections)}."
        )
    _check_network(network)
    _check_images(images)
    exact = copy.deepcopy(network).to(torch.float64).requires_grad_(False)
    layers = chain(exact)
    found: list[list[Certificate]] = [[] for _ in several]
    at, size = 0, 1
    while at < len(images):
        part = images[at : at + size].to(torch.float64)
        clean = _clean(exact, layers, part)
        classes = (
            clean.logits.argmax(1)
            if labels is None
            else _checked_labels(labels, images, clean)[at : at + size]
        )
        for made, more in zip(
            found, _certificates(clean, classes, several, bisections), strict=True
        ):
            made += more
        at += size
        size = max(
            1, ENTRIES // (clean.logits.shape[1] * sum(value[0].numel() for value in clean.values))
        )
    return found[0] if isinstance(eps, int | float) else found


def _certificates(
    clean: Clean, labels: Int[Tensor, " b"], several: list[float], bisections: int
) -> list[list[Certificate]]:
    """Radii from the largest down, so that an image certified at one is not tried at smaller
    ones.
    """
    clean.aim(labels)
    count = len(labels)
    radius = torch.zeros(count, dtype=torch.float64, device=labels.device)
    method = torch.zeros_like(labels)
    least = torch.minimum(
        clean.limits(), torch.as_tensor(math.sqrt(clean.values[0][0].numel()), dtype=torch.float64)
    )
    verdicts: dict[float, tuple[list[bool], list[int]]] = {}
    for eps in sorted(set(several), reverse=True):
        _try(clean, torch.full_like(radius, eps), radius, method)
        verdicts[eps] = ((radius >= eps).tolist(), method.tolist())
    high = least
    for _ in range(bisections):
        middle = (radius + high) / 2
        before = radius.clone()
        _try(clean, middle, radius, torch.zeros_like(method))
        high = torch.where(radius > before, high, torch.minimum(high, middle))
    margins, proved, names = clean.margins.amin(0).tolist(), radius.tolist(), labels.tolist()
    return [
        [
            Certificate(
                names[i],
                eps,
                verdict,
                proved[i],
                margins[i],
                METHODS[how if verdict else 0],
                "proved",
                ASSUMPTIONS,
            )
            for i, (verdict, how) in enumerate(zip(*verdicts[eps], strict=True))
        ]
        for eps in several
    ]


def _try(
    clean: Clean, eps: Float[Tensor, " b"], radius: Float[Tensor, " b"], method: Int[Tensor, " b"]
) -> None:
    """Certify the images whose proved radius is below eps; write what is proved into radius and
    method.
    """
    image = torch.nonzero((eps > radius) & (eps > 0))[:, 0]
    how = clean.certify(image, eps[image])
    done = image[how > 0]
    radius[done], method[done] = eps[done], how[how > 0]


def _clean(network: nn.Module, layers: list[Layer], images: Tensor) -> Clean:
    try:
        clean = Clean(layers, images)
        with torch.no_grad():
            whole = network(images)
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
    if whole.shape != logits.shape or not torch.allclose(whole, logits, rtol=1e-8, atol=1e-8):
        raise ValueError(
            "the network computes something else than its layers one after the other, so bounds of"
            " its layers say nothing of it."
        )
    return clean


def _checked_eps(eps: object) -> list[float]:
    several: list[Any] = (
        list(eps) if isinstance(eps, Sequence) and not isinstance(eps, str) else [eps]
    )
    if not several:
        raise ValueError("eps must be a number above 0, or several of them, got none.")
    for one in several:
        check_positive("eps", one)
    return [float(one) for one in several]


def _check_network(network: object) -> None:
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
        if weights.is_floating_point() and not weights.isfinite().all():
            raise ValueError(
                f"the weights {name} of the network hold NaN or infinite entries, so nothing can be"
                " certified."
            )


def _check_images(images: object) -> None:
    check_tensor("images", images, "... b")
    assert isinstance(images, Tensor)
    if images.ndim < 2:
        raise ValueError(
            f"images must have shape (b, ...), a batch, got {described(images)}. Use image[None]"
            " for one."
        )
    if images.min() < 0 or images.max() > 1:
        raise ValueError(
            f"pixels must lie in [0, 1], got values from {float(images.min()):.6g} to"
            f" {float(images.max()):.6g}. Divide by 255, or undo a normalisation and put it into"
            " the network."
        )


def _checked_labels(labels: object, images: Tensor, clean: Clean) -> Tensor:
    check_labels(labels, len(images), clean.logits.shape[1])
    assert isinstance(labels, Tensor)
    return labels.to(clean.logits.device, torch.int64)
