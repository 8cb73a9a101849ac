"""Any network: layers are found by their structure and differentiated through their own modules.

A layer is called again with the mask and the other arguments that it received when `tokens` last
ran a sequence of that length, so a causal model stays causal. Its weights are not understood: there
is no `attention(layer)` and no bound.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.models._base import Encoder, Model, ModelNotice, Part
from attnscope.models._catch import Call, caught
from attnscope.validation import described


@final
class Generic(Model):
    """Layers found by structure: `nn.TransformerEncoderLayer`s, a list of blocks with attention
    inside, or attention modules alone.
    """

    family: ClassVar[str] = "generic"

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name, encoder)
        self._blocks = _find_blocks(module)
        self._calls: dict[tuple[nn.Module, int], Call] = {}
        self._seen_causal: bool | None = None
        block = self._blocks[0]
        self.pre_norm: bool = bool(getattr(block, "norm_first", False))
        self._sequence_first = any(
            not inner.batch_first
            for inner in block.modules()
            if isinstance(inner, nn.MultiheadAttention)
        )
        warnings.warn(
            f"the architecture of {name} is not known: its {len(self._blocks)} layers of type"
            f" {type(block).__name__} were found by their structure and are differentiated through"
            " their own modules, without heads or bounds.",
            ModelNotice,
            stacklevel=3,
        )

    @property
    def blocks(self) -> list[Any]:
        return self._blocks

    @property
    def causal(self) -> bool:
        """Seen when tokens ran: whether moving the last token leaves what the others receive
        unchanged. Before that, what it says.
        """
        if self._seen_causal is not None:
            return self._seen_causal
        return any(bool(getattr(part, "is_causal", False)) for part in self._blocks[0].modules())

    @property
    def positions(self) -> int:
        """The limit that the configuration names, or none."""
        return self._number("max_position_embeddings", "block_size", default=sys.maxsize)

    @property
    def heads(self) -> int:
        return self._number("num_attention_heads", "num_heads", "n_heads", "n_head")

    @property
    def dim(self) -> int:
        if self._calls:
            return next(iter(self._calls.values())).hidden.shape[-1]
        return self._number("hidden_size", "embed_dim", "d_model", "n_embd")

    @property
    def rebuilt(self) -> bool:
        return False

    def points(
        self, ids: Int[Tensor, "samples n"], layers: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "samples n d"], Float[Tensor, "samples n d"]]]:
        """Caught layer by layer; where the attention cannot be told apart, the stream stands for
        what it reads.
        """
        for layer in sorted(set(layers)):
            stream = self.tokens(ids, layer, "block")
            try:
                read = self.tokens(ids, layer, "attention")
            except ValueError:
                read = stream
            yield layer, stream, read

    def norm(self, layer: int) -> nn.Module:
        block = self._blocks[layer]
        if not isinstance(block, nn.TransformerEncoderLayer):
            raise ValueError(
                f'the norm of {type(block).__name__} could not be found: use part="attention" or'
                ' part="block".'
            )
        return block.norm1

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

    def attend(self, layer: int, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self._again(self._attention_in(layer), x)

    def run_block(self, layer: int, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self._again(self._blocks[layer], x)

    def _apply(self, layer: int, part: Part, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if part in ("norm+attention", "residual"):
            self.norm(layer)
        return super()._apply(layer, part, x)

    def _hidden(self, inputs: Tensor, layer: int, part: Part) -> Float[Tensor, "b n d"]:
        block = self._blocks[layer]
        self._remember(block, inputs[:1])
        for inner in _attentions(block):
            self._remember(inner, inputs[:1])
        point = self._attention_in(layer) if part == "attention" else block
        return self._batched(caught(point, lambda: self._run(inputs)).hidden)

    def _remember(self, part: nn.Module, inputs: Tensor) -> None:
        """Keep what a part is told besides its tokens, and see whether it is causal."""
        call = caught(part, lambda: self._run(inputs))
        x = self._batched(call.hidden)
        self._calls[part, x.shape[-2]] = call
        if part in self._blocks and x.shape[-2] > 1:
            moved = x.clone()
            moved[:, -1] += 1 + torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
            before, after = (self._again(part, tokens)[:, :-1] for tokens in (x, moved))
            self._seen_causal = torch.allclose(before, after, rtol=1e-5, atol=1e-6)

    def _run(self, inputs: Tensor) -> None:
        if hasattr(self.module, "main_input_name"):
            accepted = inspect.signature(self.module.forward).parameters
            extra = {"use_cache": False} if "use_cache" in accepted else {}
            self.module(**{self.module.main_input_name: inputs}, **extra)
        else:
            x = self._batched(inputs)
            self.module(*[x] * (3 if isinstance(self.module, nn.MultiheadAttention) else 1))

    def _inputs(self, source: str | Tensor) -> tuple[Tensor, bool]:
        """A stack of whatever the network reads: ids, tokens or images."""
        inputs = self.encode(source) if isinstance(source, str) else source
        if not isinstance(inputs, Tensor) or not inputs.numel():
            raise ValueError(
                f"tokens needs a text or a tensor that {self.name} can read, got"
                f" {described(source)}."
            )
        images = getattr(self.module, "main_input_name", "") == "pixel_values"
        single = 3 if images else 2 if inputs.is_floating_point() else 1
        if inputs.ndim not in (single, single + 1):
            raise ValueError(
                f"tokens needs a tensor with {single} axes, or {single + 1} for a stack, got"
                f" {described(source)}."
            )
        if not images and inputs.shape[-single] > self.positions:
            raise ValueError(
                f"{self.name} takes at most {self.positions} tokens, got {inputs.shape[-single]}."
                " Use shorter sequences."
            )
        inputs = inputs.to(
            device=self.device, dtype=self.dtype if inputs.is_floating_point() else None
        )
        return inputs if inputs.ndim > single else inputs[None], inputs.ndim > single

    def _again(self, part: nn.Module, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Call a part as it was called before, with x for its tokens."""
        call = self._calls.get((part, x.shape[-2]))
        if call is None:
            raise ValueError(
                f"the mask of {self.name} for {x.shape[-2]} tokens is not known yet: call"
                " model.tokens(...) on a sequence of that length and on this layer first."
            )
        out = call.repeat(part, self._batched(x))
        if not isinstance(out, Tensor) or out.ndim != 3:
            raise ValueError(
                f"{type(part).__name__} of {self.name} does not give tokens back, so it cannot be"
                " differentiated as a map."
            )
        return self._batched(out)

    def _batched(self, x: Tensor) -> Tensor:
        """From the network's order of axes to (B, n, d), and back."""
        return x.transpose(0, 1) if self._sequence_first else x

    def _attention_in(self, layer: int) -> nn.Module:
        """The one attention module of a layer, if it is attention and nothing else."""
        block = self._blocks[layer]
        found = list(_attentions(block))
        if len(found) != 1:
            raise ValueError(
                f'{type(block).__name__} holds {len(found)} attention modules: use part="block".'
            )
        norms = [part for part in found[0].modules() if "norm" in type(part).__name__.lower()]
        if any(weight.numel() == self.dim for norm in norms for weight in norm.parameters()):
            raise ValueError(
                f"{type(found[0]).__name__} has a norm inside, so its attention alone cannot be"
                ' told apart: use part="block".'
            )
        return found[0]

    def _number(self, *names: str, default: int | None = None) -> int:
        """What the configuration or a module of the first layer calls by one of these names."""
        for holder in (getattr(self.module, "config", None), *self._blocks[0].modules()):
            for name in names:
                if isinstance(value := getattr(holder, name, None), int):
                    return value
        if default is None:
            raise ValueError(f"{self.name} does not say its {names[0]}.")
        return default


def _find_blocks(module: nn.Module) -> list[nn.Module]:
    encoder_layers: list[nn.Module] = [
        part for part in module.modules() if isinstance(part, nn.TransformerEncoderLayer)
    ]
    if encoder_layers:
        return encoder_layers
    lists: list[list[nn.Module]] = [
        list(part) for part in module.modules() if isinstance(part, nn.ModuleList)
    ]
    stacks = [
        blocks
        for blocks in lists
        if blocks
        and len({type(b) for b in blocks}) == 1
        and all(list(_attentions(b)) for b in blocks)
    ]
    found = max(stacks, key=len, default=list(_attentions(module)))
    if not found:
        raise ValueError(
            f"{type(module).__name__} holds no module that looks like attention, so there is no"
            " layer to measure."
        )
    return found


def _attentions(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules whose class is called attention."""
    if "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower():
        yield module
    else:
        for child in module.children():
            yield from _attentions(child)
