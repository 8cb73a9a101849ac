"""`Certificate`: what is proved about one image, and under which assumptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from attnscope.norms import SLACK

Method = Literal["none", "layer-wise", "margin form", "NT4"]

REBUILT = (
    "l2 ball in the space of the input, which may leave the range of pixels; the network is the"
    " function of its weights in exact arithmetic, evaluated in float64 with a relative slack of"
    f" {SLACK:g} in every radius, norm, remainder and margin (stated slack, not interval"
    " arithmetic); it was rebuilt from modules of exactly known classes without hooks, and agrees"
    " with its own forward at the image and at a random point of the ball; bounds that layers of"
    " your own declare are taken at their word"
)

ASSUMPTIONS = (
    "l2 ball in the space of the input, which may leave the range of pixels; the network is the"
    " function of its weights in exact arithmetic, evaluated in float64 with a relative slack of"
    f" {SLACK:g} in every radius, norm, remainder and margin (stated slack, not interval"
    " arithmetic); it is the chain of its layers: its forward was followed at the image and at a"
    " random point of the ball and did nothing but hand each layer's output to the next, no module"
    " has hooks, and reparametrised weights were computed anew; bounds that layers of your own"
    " declare are taken at their word"
)


@final
@dataclass(frozen=True)
class Certificate:
    """One image, one radius: with verdict True, no perturbation of l2 norm at most `eps` takes the
    largest logit from `label`.

    `radius` is the largest radius tried that was proved, 0 if none was; `margin` is the logit of
    the label minus the largest other one at the image itself. `method` proved the verdict:
    "layer-wise" (radii composed layer by layer, contracted with the head), "margin form" (gradients
    and remainders of the last layers, radii before them), "NT4" (gradient at the input and
    remainders of all layers). `limited_by` names the layer whose remainder takes most of the margin
    at the proved radius, in a network of residual branches.
    """

    label: int
    eps: float
    verdict: bool
    radius: float
    margin: float
    method: Method
    kind: Literal["proved"] = "proved"
    limited_by: str = ""
    assumptions: str = field(default=ASSUMPTIONS, repr=False)

    def __str__(self) -> str:
        says = (
            f"certified at {self.eps:.4g} by {self.method}"
            if self.verdict
            else f"not certified at {self.eps:.4g}"
        )
        return (
            f"class {self.label} is {says} (margin {self.margin:.4g}, proved radius"
            f" {self.radius:.4g})"
        )
