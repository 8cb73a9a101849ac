"""The layers of a network as they run: which masks they are told, how they are built."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.models._anatomy import Anatomy, anatomy
from attnscope.models._catch import Call, calls_of, tokens_at
from attnscope.models._door_trial import behind_door
from attnscope.models._parts import Part, Running
from attnscope.models._plain import Plain
from attnscope.models._stack import attentions, sample
from attnscope.models._state import structure_of
from attnscope.models._taps import TAPPED

REMEMBERED = 8
"""For how many lengths a model remembers the masks of its layers."""


class Layers(ABC):
    """Runs each layer of a network from one point inside it to another.

    A layer is called with the mask and the other arguments that it received when the network last
    read a sequence of that length, its own or a sample, so that a causal model stays causal.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module: Any = module
        self.name = name
        self.plainly = Plain(module)
        self._calls: dict[int, list[Call]] = {}
        self._seen: dict[int, tuple[tuple[Any, ...], Anatomy]] = {}
        self._alone: bool | None = None
        self._behind: bool | None = None

    @property
    @abstractmethod
    def blocks(self) -> list[Any]:
        """The layers, first to last."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """The longest sequence that the model can take."""

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def dim(self) -> int:
        return int(self.config.hidden_size)

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.module.parameters() if p.dtype.is_floating_point)

    def entry(self, layer: int, x: Float[Tensor, "b n d"], part: Part) -> Float[Tensor, "b n d"]:
        """The input point of a part when the residual stream before the layer is x."""
        if part not in ("attention", "mlp"):
            return x
        # Known before the context begins: the first run decides which attention it is.
        running = self.running(layer, x.shape[-2])
        with torch.no_grad(), self.plainly():
            return self._each(partial(running.entry, part), x)

    def read(self, layer: int, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """What the attention of this layer reads when the stream is x; x itself where a layer has
        no attention that can be told apart.
        """
        attended = self._anatomy(layer, x.shape[-2]).attended
        return x if attended is None else self.entry(layer, x, "attention")

    def running(self, layer: int, n: int) -> Running:
        """The layer as it runs on n tokens."""
        block, call = self.blocks[layer], self._call(layer, n)
        return Running(
            f"layer {layer} of {self.name} ({type(block).__name__})",
            block,
            lambda x: self._result(block, call.repeat(block, x)),
            self._anatomy(layer, n),
        )

    def anatomy(self, layer: int) -> Anatomy:
        """How the layer is built."""
        return self._anatomy(layer, self.usual_length)

    def _anatomy(self, layer: int, n: int) -> Anatomy:
        """How the layer is built, on random tokens; seen again when a hook or a module is new."""
        block = self.blocks[layer]
        built = structure_of(block)
        if layer not in self._seen or self._seen[layer][0] != built:
            call = self._call(layer, n)
            draw = torch.randn(4, n, self.dim, generator=torch.Generator().manual_seed(layer))
            draw = draw.to(device=self.device, dtype=self.dtype)
            with self.plainly():
                x = self._ordered(draw[:1] if self._one_by_one(draw, block, call) else draw)
                found = anatomy(block, partial(call.repeat, block), x, list(attentions(block)))
            self._seen[layer] = built, found
        return self._seen[layer][1]

    def _each(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Float[Tensor, "b n d"]:
        """Run a stack of sequences, together or one after the other where the masks of the model
        speak of a single one.
        """
        stack = x.reshape(-1, *x.shape[-2:])
        runs = stack.split(1) if self._alone else (stack,)
        return torch.cat([self._ordered(run(self._ordered(some))) for some in runs])

    def _one_by_one(self, x: Float[Tensor, "b n d"], block: nn.Module, call: Call) -> bool:
        """Whether a stack cannot be called like a single sequence (Bloom's position bias has as
        many rows as sequences times heads).
        """
        if self._alone is None and not x.is_meta:
            run = partial(call.repeat, block)
            with torch.no_grad():
                one = run(self._ordered(x[:1]))
                try:
                    some = self._ordered(run(self._ordered(x)))
                except (RuntimeError, IndexError, ValueError):
                    self._alone = True
                else:
                    self._alone = not torch.allclose(
                        some[:1], self._ordered(one), rtol=1e-4, atol=1e-5
                    )
        return bool(self._alone)

    def _call(self, layer: int, n: int) -> Call:
        """How the layer is called when the model reads n tokens."""
        if n not in self._calls:
            self._learn(self.sample(n))
        if n not in self._calls and self._calls and self.sees_images:
            # An image has one number of tokens; layers that are told nothing else take any.
            told = next(iter(self._calls.values()))[layer]
            if told.bare:
                return told
        if n not in self._calls:
            raise ValueError(
                f"the mask of {self.name} for {n} tokens is not known yet: call"
                " model.tokens(...) on a sequence of that length first."
            )
        return self._calls[n][layer]

    @property
    def usual_length(self) -> int:
        """A length at which the layers can be tried: that of images, or a short one."""
        if self.sees_images and not self._calls:
            self._learn(self.sample(1))
        return next(iter(self._calls)) if self.sees_images else min(5, self.positions)

    def sample(self, n: int) -> Tensor | None:
        """An input of n tokens, to see how the layers are called; None if nobody knows one."""
        if not self.sees_images:
            self._check_length(n)
        drawn = sample(self.module, n, torch.Generator().manual_seed(0))
        if drawn is None:
            return None
        return drawn.to(self.device, self.dtype if drawn.is_floating_point() else None)

    @property
    def tapped(self) -> bool:
        """Whether the model is behind the door: its attention goes through ours, once for each
        attention, with the values of its own. Found by running a sample both ways.
        """
        if self._behind is None:
            self._behind = False  # while it is tried
            self._behind = behind_door(self)
            self.plainly.door = TAPPED if self._behind else None
        return self._behind

    def _learn(self, inputs: Tensor | None) -> list[Tensor]:
        """Remember how every layer is called while the model reads one input; the tokens there."""
        if inputs is None:
            return []
        if not self.tapped:
            self.plainly.door = None
        with self.plainly():
            found = calls_of(self.blocks, lambda: self.run(inputs))
        if len(found) != self.layers:
            raise ValueError(
                f"{self.name} applied {len(found)} layers where it has {self.layers}: its layers"
                " cannot be followed."
            )
        hidden = [self._ordered(x) for _, x in found]
        n = hidden[0].shape[-2]
        self._calls.pop(n, None)
        self._calls[n] = [call for call, _ in found]
        while len(self._calls) > REMEMBERED:
            self._calls.pop(next(iter(self._calls)))
        return hidden

    def streams(self, inputs: Tensor, layers: Sequence[int]) -> dict[int, Float[Tensor, "b n d"]]:
        """The residual stream before each of these layers, caught in one pass while the model reads
        a stack of inputs with its own attention; the layers after the last are not evaluated.
        """
        self._learn(inputs[:1])
        with self.plainly(own=True):
            found = tokens_at(self.blocks, layers, lambda: self.run(inputs))
        return {layer: self._ordered(x) for layer, x in found.items()}

    def stream(self, inputs: Tensor, layer: int) -> Float[Tensor, "b n d"]:
        """The residual stream before one layer."""
        return self.streams(inputs, [layer])[layer]

    def _hidden(self, inputs: Tensor, layer: int, part: Part) -> Float[Tensor, "b n d"]:
        return self.entry(layer, self.stream(inputs, layer), part)

    def _result(self, block: nn.Module, out: object) -> Tensor:
        if not isinstance(out, Tensor) or out.ndim != 3:
            raise ValueError(
                f"{type(block).__name__} of {self.name} does not give tokens back, so it cannot be"
                " differentiated as a map."
            )
        return out

    @property
    def sees_images(self) -> bool:
        """Whether the model reads pixels."""
        return getattr(self.module, "main_input_name", "") == "pixel_values"

    def _ordered(self, x: Tensor) -> Tensor:
        """From the network's order of axes to (B, n, d), and back."""
        return x

    def run(self, inputs: Tensor) -> object:
        """What the network makes of a stack of inputs: ids, pixels, or embeddings of tokens."""
        name = getattr(self.module, "main_input_name", "input_ids")
        if name == "input_ids" and inputs.is_floating_point():
            name = "inputs_embeds"
        accepted = inspect.signature(self.module.forward).parameters
        extra = {"use_cache": False} if "use_cache" in accepted else {}
        return self.module(**{name: inputs}, **extra)

    def check_still(self) -> None:
        if any(part.training for part in self.module.modules()):
            raise ValueError(
                f"{self.name} is in training mode, so dropout would make its maps random: call"
                " module.eval() first."
            )

    def _check_length(self, n: int) -> None:
        if n > self.positions:
            raise ValueError(
                f"{self.name} takes at most {self.positions} tokens, got {n}. Use shorter"
                " sequences."
            )
