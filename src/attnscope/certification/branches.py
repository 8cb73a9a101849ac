"""Certificates of a network of residual branches, one image after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attacks.projected import check_labels
from attnscope.certification.certificate import REBUILT, Certificate
from attnscope.certification.chain import FARTHEST
from attnscope.certification.clean_graph import CleanGraph
from attnscope.certification.graph import Graph, Share
from attnscope.certification.reading import computes_in_single
from attnscope.validation import described

AGREEMENT = 1e-8
"""How closely, for rounding, the network must agree with its graph."""
SINGLE = 1e-4
"""The same where a network computes a part in single precision whatever its weights are in."""


def certified(
    network: nn.Module,
    graph: Graph,
    images: Float[Tensor, "b ..."],
    several: Sequence[float],
    labels: Int[Tensor, " b"] | None,
    bisections: int,
) -> list[list[Certificate]]:
    """One list of certificates for each eps. The network is a copy in float64."""
    exact = images.to(torch.float64, copy=True)
    check_pixels(exact)
    logits = _checked_logits(network, graph, exact)
    if labels is None:
        labels = logits.argmax(1)
    check_labels(labels, len(images), logits.shape[1])
    found: list[list[Certificate]] = [[] for _ in several]
    for number in range(len(exact)):
        clean = CleanGraph(graph, exact[number : number + 1])
        clean.aim(labels[number : number + 1])
        farthest = _farthest(clean)
        reach = farthest if bisections else min(max(several), farthest)
        _check_elsewhere(network, graph, exact[number : number + 1], reach)
        for made, one in zip(found, _radii(clean, several, bisections), strict=True):
            made.append(one)
    return found


def explained(network: nn.Module, image: Float[Tensor, "1 ..."], eps: float) -> list[Share]:
    """What each layer takes from the margin of one image that is worst off at this radius."""
    from attnscope.certification.exact import exact
    from attnscope.certification.reading import taken_apart

    with torch.inference_mode(False), torch.no_grad():
        clean = CleanGraph(taken_apart(exact(network)), image.to(torch.float64, copy=True))
        clean.aim(clean.logits.argmax(1))
        return clean.falls(eps)[1]


def _radii(clean: CleanGraph, several: Sequence[float], bisections: int) -> list[Certificate]:
    """Radii from the largest down, so that a proved one answers for the smaller; then bisection."""
    radius, high = 0.0, _farthest(clean)
    for eps in sorted(set(several), reverse=True):
        if radius == 0.0 and eps < FARTHEST and clean.certified(eps):
            radius = eps
    for _ in range(bisections):
        middle = (radius + high) / 2
        if not middle > radius:
            break
        if clean.certified(middle):
            radius = middle
        else:
            high = middle
    shares = clean.falls(radius)[1] if radius > 0 else []
    limit = max(shares, key=lambda share: share.remainder).place if shares else ""
    margin = float(clean.margins.amin())
    return [
        Certificate(
            clean.label,
            eps,
            radius >= eps,
            radius,
            margin,
            "NT4" if radius >= eps else "none",
            limited_by=limit,
            assumptions=REBUILT,
        )
        for eps in several
    ]


def _farthest(clean: CleanGraph) -> float:
    """No radius above this is asked for: there the linear part alone eats the margin or, where it
    is flat, the ball holds every picture.
    """
    size = clean.values[0].abs().amax().clamp(min=1.0) * math.sqrt(clean.values[0].numel())
    return min(clean.limit(), float(size))


def logits_of(made: Any) -> Tensor:
    """The logits, from a tensor or from the answer of a Hugging Face classifier."""
    found = made if isinstance(made, Tensor) else getattr(made, "logits", None)
    if not isinstance(found, Tensor):
        raise ValueError(f"the network must end in logits (b, classes), got {described(made)}.")
    return found


def check_pixels(images: Tensor) -> None:
    if images.ndim >= 3 and (images.min() < 0 or images.max() > 1):
        raise ValueError(
            f"pixels must lie in [0, 1], got values from {float(images.min()):.12g} to"
            f" {float(images.max()):.12g}. Undo the normalisation, and put it into the network:"
            " nn.Sequential(attnscope.layers.Normalise(mean, deviation), network)."
        )


def _checked_logits(network: nn.Module, graph: Graph, images: Tensor) -> Tensor:
    """The logits of the graph, which must be those of the network: alone, in a batch, and again."""
    try:
        together = logits_of(network(images))
        rebuilt = torch.cat([graph(one[None]) for one in images])
    except (RuntimeError, ValueError, TypeError) as failure:
        raise ValueError(
            f"images of shape {tuple(images.shape)} do not fit the network: {failure}"
        ) from failure
    if rebuilt.ndim != 2 or rebuilt.shape[1] < 2 or not rebuilt.isfinite().all():
        raise ValueError(
            "the network must end in finite logits (b, classes) of at least 2 classes, it gives"
            f" shape {tuple(rebuilt.shape)}."
        )
    _check_overwriting(graph, images[:1])
    _agree(together, rebuilt, computes_in_single(network))
    _agree(graph(images), rebuilt)
    _agree_alone(network, images[:1], rebuilt[:1])
    return rebuilt


def _check_elsewhere(network: nn.Module, graph: Graph, image: Tensor, reach: float) -> None:
    """A random point of the ball: the last guard, against mistakes in a rule."""
    generator = torch.Generator().manual_seed(image.numel())
    away = torch.randn(image.shape, dtype=torch.float64, generator=generator)
    share = torch.rand((), dtype=torch.float64, generator=generator)
    moved = image + reach * share * away / torch.linalg.vector_norm(away)
    _agree_alone(network, moved, graph(moved))


def _agree_alone(network: nn.Module, image: Tensor, rebuilt: Tensor) -> None:
    """With torch's fused encoder layers and without them: what they leave out of their modules in
    evaluation without gradients runs all the same where gradients are taken.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        for fast in (True, False):
            torch.backends.mha.set_fastpath_enabled(fast)
            _agree(logits_of(network(image)), rebuilt, computes_in_single(network))
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _check_overwriting(graph: Graph, image: Tensor) -> None:
    """A layer that writes over its input changes what the layers before it are asked about."""
    values = [image.clone()]
    for node in graph.nodes[1:]:
        read = [values[parent] for parent in node.parents]
        before = [(x.clone(), x._version) for x in read]
        values.append(read[0] + read[1] if node.link is None else node.link.layer(read[0]))
        if any(
            x._version != version or not torch.equal(x, kept)
            for x, (kept, version) in zip(read, before, strict=True)
        ):
            raise ValueError(f"{node.place} writes over its input. Let it return a new tensor.")


def _agree(whole: Tensor, rebuilt: Tensor, single: bool = False) -> None:
    tolerance = SINGLE if single or whole.dtype != torch.float64 else AGREEMENT
    if whole.shape != rebuilt.shape or not torch.allclose(
        whole.double(), rebuilt, rtol=tolerance, atol=tolerance
    ):
        raise ValueError(
            "there is no certificate, because the network answers otherwise than the graph of its"
            " layers: a batch mixes its images, a layer keeps a state or draws numbers, or"
            " something was patched."
        )
