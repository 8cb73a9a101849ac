"""What to train and how, as plain data: two runs with the same recipe in steps give the same
network.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

from attnscope.nets import Config
from attnscope.training.losses import LOSSES, MARGINS
from attnscope.validation import check_positive, described

LARGEST_RATE = 1e6
"""The first steps are a multiple of the rate, and a single-precision number."""


@final
@dataclass(frozen=True)
class Recipe:
    """A network, a loss and a budget: a number of `steps`, or `minutes` of computing."""

    config: Config
    loss: str = "gradient"
    eps: float = 0.25
    """Radius, in l2 of pixels in [0, 1], that the loss trains for."""
    delay: float = 0.0
    """Part of the budget in which the radius stays 0: content attention is found first."""
    ramp: float = 0.0
    """Part of the budget in which it then rises to eps, in a straight line."""
    margins: str = "fixed"
    """"earned": the loss takes from an image no more than its margin; "fixed": always eps."""
    steps: int | None = None
    minutes: float | None = None
    """Time of this thread alone: neither evaluations nor waiting for a busy machine count."""
    batch: int = 128
    rate: float = 3e-3
    floor: float = 0.25
    r"""Content attention is kept alive: $\|A_h\|$ is lifted to this after every step."""
    cap: float = 0.4
    r"""and lowered to this, so that it can be certified."""
    value_cap: float = 0.5
    r"""The same for what each head writes, $s\|W_hV_h\|$."""
    flip: bool = False
    """Whether images are mirrored at random."""
    shift: int = 0
    """Images are moved by up to this many pixels at random."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(
                f"loss must be one of {', '.join(LOSSES)}, got {described(self.loss)}."
            )
        if self.margins not in MARGINS:
            raise ValueError(
                f"margins must be one of {', '.join(MARGINS)}, got {described(self.margins)}."
            )
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(
                f"give either steps or minutes, got steps = {self.steps} and minutes ="
                f" {self.minutes}."
            )
        for name in ("eps", "rate", "minutes", "steps", "batch"):
            value = getattr(self, name)
            if value is not None:
                check_positive(name, value)
        if self.rate > LARGEST_RATE:
            raise ValueError(
                f"rate must be at most {LARGEST_RATE:g}, beyond which a step may overflow, got"
                f" {self.rate:g}: a usual one is 0.003."
            )
        for name in ("steps", "batch", "shift", "seed"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                raise ValueError(
                    f"{name} must be a whole number of at least 0, got {described(value)}."
                )
        for name in ("floor", "cap", "value_cap", "delay", "ramp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name} must be a number of at least 0, got {described(value)}.")
        if self.delay + self.ramp > 1:
            raise ValueError(
                "delay and ramp are parts of the budget and must not add up to more than 1, got"
                f" delay = {self.delay} and ramp = {self.ramp}."
            )
        if self.floor > self.cap:
            raise ValueError(
                f"the floor of the norm of A must not be above its cap, got floor = {self.floor}"
                f" and cap = {self.cap}."
            )
        if self.config.kind != "classifier":
            raise ValueError(
                "only classifiers are trained here, got the config of a language model."
            )

    def radius(self, progress: float) -> float:
        """What the loss trains for when this part of the budget is spent."""
        if progress < self.delay:
            return 0.0
        return self.eps * min(1.0, (progress - self.delay) / self.ramp if self.ramp else 1.0)

    def control(self) -> Recipe:
        """The same recipe with A = 0 from the first step on: tokens meet, by their places alone."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, content=False))

    def as_dict(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        return dataclasses.asdict(self)
