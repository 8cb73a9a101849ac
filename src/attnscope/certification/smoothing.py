r"""Randomized smoothing [cohen19]: radii of any classifier that hold but for a small probability.

The smoothed classifier reads an image as the class that noisy copies of it are read as most often,
$g(x) = \arg\max_c P(f(x + \sigma\xi) = c)$ with $\xi$ standard normal. If $p$ is at most the
probability of its class at $x$ and $p > 1/2$, then $g$ is constant within
$\sigma\Phi^{-1}(p)$ of $x$ [cohen19, Thm 1]. The class is chosen by some samples; then $p$ is the
Clopper-Pearson bound of others, too large with probability at most $\alpha$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.certification.branches import check_pixels, logits_of
from attnscope.certification.network import check_network
from attnscope.validation import as_generator, check_positive, check_tensor, described

ASSUMPTIONS = (
    "the smoothed classifier, not the network itself, keeps its class in an l2 ball in the space of"
    " the input, which may leave the range of pixels; the network is taken as it is evaluated, one"
    " image at a time; floating-point noise is taken for Gaussian, its seed for random"
)
BATCH = 512
"""Noisy copies behind one call of the network."""
ROUNDING = 1e-12
"""Relative; what quantiles are lowered by."""
ALONE = 1e-3
"""How closely an image alone must give what it gives in a batch, for rounding in float32."""


@final
@dataclass(frozen=True)
class Smoothed:
    """One image: but for the probability `failure_probability`, the smoothed classifier reads every
    image within `radius` as `label`.

    `label` is None, and the radius 0, where the samples do not tell: the classifier abstains. Of
    `samples` noisy copies `count` were read as the class that was selected, so that its probability
    is at least `lower`.
    """

    label: int | None
    radius: float
    sigma: float
    lower: float
    count: int
    samples: int
    failure_probability: float
    kind: Literal["probable"] = "probable"
    assumptions: str = field(default=ASSUMPTIONS, repr=False)

    def __str__(self) -> str:
        if self.label is None:
            return f"abstains: {self.count} of {self.samples} samples do not tell the class"
        return (
            f"class {self.label} is kept by the smoothed classifier (sigma {self.sigma:.4g}) within"
            f" {self.radius:.4g}, wrong with probability at most {self.failure_probability:.3g}"
        )


def smoothed(
    network: nn.Module,
    images: Float[Tensor, "b ..."],
    sigma: float,
    *,
    samples: int = 1000,
    selection: int = 100,
    alpha: float = 1e-3,
    seed: int | torch.Generator = 0,
    watch: Callable[[float], object] = lambda part: None,
) -> list[Smoothed]:
    """Certify any classifier after smoothing it by Gaussian noise [cohen19]: one `Smoothed` per
    image.

    Args:
        network: any module that gives logits (b, classes), in evaluation mode; a Hugging Face image
            classifier as it is. It is run in its own precision.
        images: pixels in [0, 1].
        sigma: standard deviation of the noise in every pixel.
        samples: noisy copies behind each bound; no radius exceeds sigma times the normal quantile
            of alpha**(1 / samples). The paper has 100,000.
        selection: further copies, which choose the class.
        alpha: the probability with which a single image may be certified wrongly; over several
            images these add up.
        seed: of the noise.
        watch: told the share of the images' samples that are done, from 0 to 1.

    Returns:
        What holds for each image, of kind "probable". It speaks of the smoothed classifier, which
        is another one than the network.
    """
    check_network(network)
    check_tensor("images", images, "... b")
    check_pixels(images)
    check_positive("sigma", sigma)
    for name, number in (("samples", samples), ("selection", selection)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {described(number)}."
            )
    if not isinstance(alpha, float) or not 0 < alpha < 1:
        raise ValueError(f"alpha must be a probability between 0 and 1, got {described(alpha)}.")
    noise = _Noise(network, float(sigma), as_generator(seed, images.device))
    found = []
    with torch.no_grad():
        if len(images):
            _check_alone(network, noise.around(images[0], min(3, samples)))
        for number, image in enumerate(images):
            chosen = int(noise.counts(image, selection).argmax())
            counts = noise.counts(image, samples)
            label = None if chosen == len(counts) - 1 else chosen  # the last place is no class
            found.append(_judged(label, int(counts[chosen]), samples, float(sigma), alpha))
            watch((number + 1) / len(images))
    return found


def clopper_pearson(count: int, samples: int, alpha: float) -> float:
    r"""The largest p with $P(\mathrm{Bin}(n, p) \ge k) \le \alpha$: the probability behind `count`
    successes is at least this, but with probability alpha.
    """
    from scipy.special import betaincinv  # half a second, for those who smooth

    if count == 0:
        return 0.0
    return float(betaincinv(count, samples - count + 1, alpha)) * (1 - ROUNDING)


def _judged(chosen: int | None, count: int, samples: int, sigma: float, alpha: float) -> Smoothed:
    from scipy.special import ndtri

    lower = 0.0 if chosen is None else clopper_pearson(count, samples, alpha)
    if lower <= 0.5:
        return Smoothed(None, 0.0, sigma, lower, count, samples, alpha)
    radius = sigma * float(ndtri(lower)) * (1 - ROUNDING)
    return Smoothed(chosen, radius, sigma, lower, count, samples, alpha)


@final
class _Noise:
    """Noisy copies of images, and how often they are read as each class."""

    def __init__(self, network: nn.Module, sigma: float, generator: torch.Generator) -> None:
        self.network, self.sigma, self.generator = network, sigma, generator
        self.dtype = next((part.dtype for part in network.parameters()), torch.get_default_dtype())

    def around(self, image: Float[Tensor, ...], count: int) -> Float[Tensor, "k ..."]:
        """Noise is drawn and added in float32 at least: rounded to fewer digits it is no Gaussian,
        and the image is another one. What such a network rounds then is its own first step.
        """
        shape, kind = (count, *image.shape), torch.promote_types(self.dtype, torch.float32)
        drawn = torch.randn(shape, dtype=kind, device=image.device, generator=self.generator)
        return (image.to(kind) + self.sigma * drawn).to(self.dtype)

    def counts(self, image: Float[Tensor, ...], samples: int) -> Int[Tensor, " c"]:
        """How many noisy copies are read as each class; in the last place, as none."""
        total: Any = 0
        for done in range(0, samples, BATCH):
            logits = _checked(self.network(self.around(image, min(BATCH, samples - done))))
            classes = logits.shape[1]
            read = logits.argmax(1).masked_fill(~logits.isfinite().all(1), classes)
            total = total + torch.bincount(read, minlength=classes + 1)
        made: Tensor = total
        return made


def _checked(answer: object) -> Float[Tensor, "b classes"]:
    logits = logits_of(answer)
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(
            "the network must end in logits (b, classes) of at least 2 classes, it gives shape"
            f" {tuple(logits.shape)}."
        )
    return logits


def _check_alone(network: nn.Module, images: Float[Tensor, "k ..."]) -> None:
    """Samples are independent only if an image's answer does not depend on those beside it."""
    try:
        together = _checked(network(images))
        alone = torch.cat([_checked(network(image[None])) for image in images])
    except (RuntimeError, TypeError) as failure:
        raise ValueError(
            f"images of shape {tuple(images.shape)} do not fit the network: {failure}"
        ) from failure
    if together.shape != alone.shape or not torch.allclose(
        together, alone, rtol=ALONE, atol=ALONE * float(alone.abs().nan_to_num().amax()),
        equal_nan=True,
    ):  # fmt: skip
        raise ValueError(
            "nothing can be said of the smoothed network, because it answers otherwise to an image"
            " alone than in a batch: a layer mixes the images of a batch, keeps a state or draws"
            " numbers."
        )
