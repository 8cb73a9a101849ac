"""Training step by step, with a state that can be stored and taken up again exactly."""

from __future__ import annotations

import math
import time
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import Overflow
from attnscope.nets import Transformer
from attnscope.training.losses import graded
from attnscope.training.recipe import Recipe
from attnscope.validation import described

WARM_UP = 0.03
"""Part of the budget in which the learning rate rises."""
LAST_RATE = 0.005
"""Part of the learning rate that is left at the end of the cosine."""


class Seen(NamedTuple):
    """What one step saw of its own batch, before it changed the network: estimates, not
    certificates.
    """

    step: int
    loss: float
    clean: float
    first_order: float
    """Share of the batch whose margin is above its first-order decrease at the radius of the
    step.
    """


@final
class Training:
    """A network on its way. `advance()` takes one step; `tensors()` and `numbers()` are its whole
    state.

    Step s draws its batch from a generator seeded by (seed, s), so the state holds no generator.
    """

    def __init__(
        self,
        recipe: Recipe,
        pixels: Float[Tensor, "N C H W"],
        labels: Int[Tensor, " N"],
        device: str = "cpu",
    ) -> None:
        config = recipe.config
        if tuple(pixels.shape[1:]) != config.image:
            raise ValueError(f"the network reads images {config.image}, got {described(pixels)}.")
        if int(labels.max()) >= config.outputs:
            raise ValueError(
                f"the network tells {config.outputs} classes apart, got label {int(labels.max())}."
            )
        self.recipe, self.pixels, self.labels, self.device = recipe, pixels, labels, device
        self.network = Transformer(config, recipe.seed).to(device)
        self.trained = {
            name: part for name, part in self.network.named_parameters() if part.requires_grad
        }
        self.optimiser = torch.optim.Adam(
            self.trained.values(), lr=recipe.rate, betas=(0.9, 0.98), foreach=False
        )
        self.step, self.seconds = 0, 0.0

    @property
    def progress(self) -> float:
        """How much of the budget is spent, 0 to 1."""
        if self.recipe.steps is not None:
            return min(1.0, self.step / self.recipe.steps)
        assert self.recipe.minutes is not None
        return min(1.0, self.seconds / (60 * self.recipe.minutes))

    def advance(self) -> Seen:
        """One step of Adam on one batch."""
        begun = time.thread_time()
        x, labels = self._batch()
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * schedule(self.progress)
        try:
            found = graded(
                self.recipe.loss,
                self.network,
                x,
                labels,
                self.recipe.radius(self.progress),
                self.recipe.margins,
            )
        except Overflow as error:
            raise ValueError(
                f"attention overflows at step {self.step}: training diverged, use a smaller"
                " learning rate."
            ) from error
        if not math.isfinite(found.loss.item()):
            raise ValueError(
                f"the loss is {found.loss.item()} at step {self.step}: training diverged, use a"
                " smaller learning rate."
            )
        self.optimiser.zero_grad()
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0, foreach=False)
        self.optimiser.step()
        for layer in self.network.attentions:
            layer.hold(self.recipe.floor, self.recipe.cap, self.recipe.value_cap)
        self.step += 1
        self.seconds += time.thread_time() - begun
        clean = (found.margins > 0).double().mean().item()
        return Seen(
            self.step,
            found.loss.item(),
            clean,
            (found.margins > found.lowered).double().mean().item(),
        )

    def _batch(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((self.recipe.seed << 32) + self.step)
        chosen = torch.randint(len(self.pixels), (self.recipe.batch,), generator=generator)
        x = augmented(
            self.pixels[chosen].to(torch.float32), self.recipe.flip, self.recipe.shift, generator
        )
        return x.to(self.device), self.labels[chosen].to(self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and the two moments of Adam."""
        state = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for name, part in self.trained.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = self.optimiser.state[part].get(
                    moment, torch.zeros_like(part)
                )
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def restore(self, tensors: dict[str, Tensor], step: int, seconds: float) -> None:
        """Go on from a state that `tensors` gave after so many steps and seconds."""
        weights = {name: tensors[f"network.{name}"] for name in self.network.state_dict()}
        self.network.load_state_dict(weights)
        for name, part in self.trained.items():
            moments = {
                moment: tensors[f"{moment}.{name}"].to(part.device).clone()
                for moment in ("exp_avg", "exp_avg_sq")
            }
            self.optimiser.state[part] = {"step": torch.tensor(float(step)), **moments}
        self.step, self.seconds = step, seconds


def schedule(progress: float) -> float:
    """The learning rate over its largest value: a short rise, then half a cosine."""
    rise = min(1.0, 0.01 + progress / WARM_UP)
    return rise * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * progress)) / 2)


def augmented(
    x: Float[Tensor, "b C H W"], flip: bool, shift: int, generator: torch.Generator
) -> Float[Tensor, "b C H W"]:
    """Mirror each image with probability 1/2, move all by the same random number of pixels; what
    enters repeats the edge.
    """
    if flip:
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    if shift:
        down, right = torch.randint(2 * shift + 1, (2,), generator=generator).tolist()
        height, width = x.shape[-2:]
        x = F.pad(x, [shift] * 4, mode="replicate")[
            ..., down : down + height, right : right + width
        ]
    return x
