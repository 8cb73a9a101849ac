"""Any network: layers are found by their structure and differentiated through their own modules.

Its weights are not understood: there is no `attention(layer)` and no bound on a ball.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.models._base import Model, ModelNotice
from attnscope.models._catch import cause
from attnscope.models._reading import Encoder
from attnscope.models._stack import attentions, layers_of, sample
from attnscope.validation import described

SAMPLE = 6
"""Tokens of the input on which an unknown network is first run."""


@final
class Generic(Model):
    """Layers found by structure: a list of blocks with attention inside, as often as the network
    applies them, or attention modules alone.
    """

    family: ClassVar[str] = "generic"

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name, encoder)
        self._blocks: list[nn.Module] = []
        self._width: int | None = None
        self._seen_causal: bool | None = None
        first = sample(module, SAMPLE, torch.Generator().manual_seed(0))
        if first is not None:
            first = first.to(self.device, self.dtype if first.is_floating_point() else None)
        self._blocks = self._found(first)
        block = self._blocks[0]
        self._sequence_first = any(
            not inner.batch_first
            for inner in block.modules()
            if isinstance(inner, nn.MultiheadAttention)
        )
        kinds = " and ".join(dict.fromkeys(type(block).__name__ for block in self._blocks))
        without = [i for i, b in enumerate(self._blocks) if next(attentions(b), None) is None]
        warnings.warn(
            f"the architecture of {name} is not known: its {len(self._blocks)} layers of type"
            f" {kinds} were found by their structure and are differentiated through"
            " their own modules, without heads or bounds from their weights."
            + f" Layers {', '.join(map(str, without))} have no attention."
            * bool(without),
            ModelNotice,
            stacklevel=3,
        )

    def _found(self, first: Tensor | None) -> list[nn.Module]:
        if first is None or first.is_meta:
            return layers_of(self.module, None)
        try:
            with self.plainly():
                return layers_of(self.module, lambda: self.run(first))
        except (RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
            kind = self.module.main_input_name
            raise ValueError(
                f"{self.name} could not be run on {kind} alone ({cause(error)}). Pass the part of"
                " it that reads one input as a module, such as its text or vision model."
            ) from error

    @property
    def blocks(self) -> list[Any]:
        return self._blocks

    @property
    def pre_norm(self) -> bool:  # type: ignore[override]
        """Whether the attention of the first layer that has one reads the output of a norm."""
        for layer, block in enumerate(self._blocks):
            if next(attentions(block), None) is not None:
                n = next(iter(self._calls), SAMPLE)
                return self._anatomy(layer, n).reads is not None
        return False

    @property
    def causal(self) -> bool:
        """Seen by trying: whether moving the last token leaves what the others receive unchanged.
        Where the network has not run yet and no input for it is known, what its modules say.
        """
        if self._seen_causal is None and not self._calls:
            self._learn(self.sample(min(SAMPLE, self.positions)))
        if self._seen_causal is None:
            return any(bool(getattr(p, "is_causal", False)) for p in self._blocks[0].modules())
        return self._seen_causal

    @property
    def positions(self) -> int:
        """The limit that the configuration names, or none."""
        return self._number("max_position_embeddings", "block_size", default=sys.maxsize)

    @property
    def heads(self) -> int:
        return self._number("num_attention_heads", "num_heads", "n_heads", "n_head")

    @property
    def dim(self) -> int:
        if self._width is None:
            self._learn(self.sample(min(SAMPLE, self.positions)))
        if self._width is None:
            return self._number("hidden_size", "embed_dim", "d_model", "n_embd")
        return self._width

    def readable(self, layer: int) -> bool:
        return False

    def norm(self, layer: int) -> nn.Module:
        raise ValueError(
            f"the norm of {type(self._blocks[layer]).__name__} in {self.name} is not understood:"
            ' use model.function(layer, "norm+attention").'
        )

    def input_norm(self, layer: int) -> nn.Module:
        return self.norm(layer)

    def norm_radius(self, layer: int) -> float | None:
        self._check_layer(layer)
        return None

    def layer_heads(self, layer: int) -> Heads:
        raise ValueError(
            f"the query, key, value and output matrices of {type(self._blocks[layer]).__name__}"
            f" could not be found in {self.name}, whose architecture is not known. Use"
            " model.function(layer, part), or write a family file for it."
        )

    def _learn(self, inputs: Tensor | None) -> list[Tensor]:
        hidden = super()._learn(inputs)
        if hidden:
            self._width = hidden[0].shape[-1]
            self._see_causal(hidden)
        return hidden

    def _see_causal(self, hidden: list[Tensor]) -> None:
        """Move the last token of the first layer with attention and see who notices."""
        n = hidden[0].shape[-2]
        for layer, block in enumerate(self._blocks):
            if n > 1 and next(attentions(block), None) is not None:
                x = hidden[layer][:1]
                moved = x.clone()
                moved[:, -1] += 1 + torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
                with torch.no_grad(), self.plainly():
                    before, after = (
                        self._ordered(self._calls[n][layer].repeat(block, self._ordered(tokens)))
                        for tokens in (x, moved)
                    )
                self._seen_causal = torch.allclose(
                    before[:, :-1], after[:, :-1], rtol=1e-5, atol=1e-6
                )
                return

    def run(self, inputs: Tensor) -> object:
        if hasattr(self.module, "main_input_name"):
            return super().run(inputs)
        x = self._ordered(inputs)
        return self.module(*[x] * (3 if isinstance(self.module, nn.MultiheadAttention) else 1))

    def _inputs(self, source: str | Tensor) -> tuple[Tensor, bool]:
        """A stack of whatever the network reads: ids, tokens or images."""
        inputs = self.encode(source) if isinstance(source, str) else source
        if not isinstance(inputs, Tensor) or not inputs.numel():
            raise ValueError(
                f"tokens needs a text or a tensor that {self.name} can read, got"
                f" {described(source)}."
            )
        known = sample(self.module, 1, torch.Generator())
        if known is not None and inputs.is_floating_point() > known.is_floating_point():
            return self._embedded(inputs)
        single = 2 if inputs.is_floating_point() else 1
        if known is not None and known.is_floating_point():
            single = known.ndim - 1
        if inputs.ndim not in (single, single + 1):
            raise ValueError(
                f"tokens needs a tensor with {single} axes, or {single + 1} for a stack, got"
                f" {described(source)}."
            )
        if known is None or not known.is_floating_point():
            self._check_length(inputs.shape[-single])
        inputs = inputs.to(
            device=self.device, dtype=self.dtype if inputs.is_floating_point() else None
        )
        return inputs if inputs.ndim > single else inputs[None], inputs.ndim > single

    def _ordered(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) if self._sequence_first else x

    def _number(self, *names: str, default: int | None = None) -> int:
        """What the configuration or a module of the first layer calls by one of these names."""
        for holder in (getattr(self.module, "config", None), *self._blocks[0].modules()):
            for name in names:
                if isinstance(value := getattr(holder, name, None), int):
                    return value
        if default is None:
            raise ValueError(f"{self.name} does not say its {names[0]}.")
        return default
