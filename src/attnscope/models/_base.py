r"""What a model family promises: the layers of a real network as maps on tokens.

A *part* of a layer is one of four maps $(n, d) \to (n, d)$. With attention $f$, the layer norm $N$
beside it and the residual stream $x$:

| part | pre-norm (GPT-2, Llama, ViT) | post-norm (BERT) |
|---|---|---|
| attention | $f$, at $N(x)$ | $f$, at $x$ |
| norm+attention | $x \mapsto f(N(x))$ | $x \mapsto N(x + f(x))$ |
| residual | $x \mapsto x + f(N(x))$ | $x \mapsto x + f(x)$ |
| block | the whole layer with its MLP | the whole layer with its MLP |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.models._catch import caught
from attnscope.models._perturbation import Perturbation
from attnscope.validation import described

Part = Literal["attention", "norm+attention", "residual", "block"]
PARTS: tuple[Part, ...] = get_args(Part)

Encoder = Callable[[str], Sequence[int]]
"""Turns a text into token ids, without special tokens."""


class ModelNotice(UserWarning):
    """Something about a model that the reader of its numbers should know."""


class Model(ABC):
    """A network whose layers are maps on tokens. `module` is the network itself, in eval mode and
    never changed.
    """

    family: ClassVar[str]
    types: ClassVar[tuple[str, ...]] = ()
    """The Hugging Face model types (`config.model_type`) that this family serves."""
    pre_norm: bool
    """Whether the norm stands before the attention, or after the residual."""

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        self.module: Any = module
        self.name = name
        self._encoder = encoder

    # What a family writes.

    @property
    @abstractmethod
    def blocks(self) -> list[Any]:
        """The layers, first to last."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a token reads only itself and the tokens before it."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """The longest sequence that the model can take."""

    @abstractmethod
    def norm(self, layer: int) -> nn.Module:
        """The norm beside the attention: before it in a pre-norm model, after the residual in a
        post-norm model.
        """

    @abstractmethod
    def input_norm(self, layer: int) -> nn.Module:
        """The norm whose output the attention reads."""

    @abstractmethod
    def layer_heads(self, layer: int) -> Heads:
        """The maps of each head of this layer."""

    @abstractmethod
    def attend(self, layer: int, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The model's own attention module, output projection and mask included."""

    @abstractmethod
    def run_block(self, layer: int, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The model's own layer, mask included."""

    # What users call.

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def heads(self) -> int:
        return int(self.config.num_attention_heads)

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

    def __repr__(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        return (
            f"{type(self).__name__}({self.name!r}, {self.layers} layers, {self.heads} heads, dim"
            f" {self.dim}, {kind}, {self.dtype})"
        )

    @property
    def rebuilt(self) -> bool:
        """Whether `attention(layer)` exists. Elsewhere the model's own modules are differentiated,
        without single heads or bounds.
        """
        return True

    def attention(self, layer: int) -> Softmax:
        """The attention of this layer as a map between measures, to be used at `tokens(...,
        layer)`.
        """
        self._check_layer(layer)
        return Softmax(self.layer_heads(layer), causal=self.causal)

    def function(self, layer: int, part: Part = "attention") -> Callable[[Tensor], Tensor]:
        """A part of this layer as a differentiable map (..., n, d) -> (..., n, d), evaluated by the
        model's own modules.
        """
        self._check_layer(layer)
        check_part(part)
        self.check_still()

        def layer_part(x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
            if x.ndim < 2 or x.shape[-1] != self.dim:
                raise ValueError(
                    f"{part} of layer {layer} needs tokens of shape (..., n, {self.dim}), got"
                    f" {described(x)}."
                )
            with plain_algebra():
                return self._apply(layer, part, x.reshape(-1, *x.shape[-2:])).reshape(x.shape)

        return layer_part

    def tokens(
        self, source: str | Tensor, layer: int, part: Part = "attention"
    ) -> Float[Tensor, "*stack n d"]:
        """The hidden states at the input point of the part: (n, d) for a text or (n,) ids, (B, n,
        d) for a (B, n) stack of ids.

        In a pre-norm model the input point of "attention" is after the norm, that of every other
        part is the residual stream.
        """
        self._check_layer(layer)
        check_part(part)
        self.check_still()
        inputs, stacked = self._inputs(source)
        with torch.no_grad(), plain_algebra():
            x = self._hidden(inputs, layer, part)
        return x if stacked else x[0]

    def points(
        self, ids: Int[Tensor, "samples n"], layers: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "samples n d"], Float[Tensor, "samples n d"]]]:
        """Each of these layers with the residual stream there and what its attention reads, in one
        pass through the blocks.
        """
        wanted = sorted(set(layers))
        x = self.tokens(ids, wanted[0], "block")
        for layer in range(wanted[0], wanted[-1] + 1):
            if layer in wanted:
                with torch.no_grad():
                    read = self.norm(layer)(x) if self.pre_norm else x
                yield layer, x, read
            if layer < wanted[-1]:
                with torch.no_grad():
                    x = self.function(layer, "block")(x)

    def perturb(
        self,
        layer: int,
        source: str | Tensor,
        eps: float | Sequence[float] | None = None,
        part: Part = "attention",
    ) -> Perturbation:
        r"""Move the tokens of one sequence along the top singular direction of a part, by
        displacements of Frobenius norm eps.

        Says how far the linear prediction holds, which tokens carry the direction, and what writing
        every token twice changes. Without eps the sizes go from a hundredth of a token's RMS norm
        to three times it. Load the model in float64 for much smaller ones.
        """
        from attnscope.models._perturb import perturb

        return perturb(self, layer, source, eps, part)

    def encode(self, text: str) -> Int[Tensor, " n"]:
        """The token ids of a text, tokenised once without special tokens."""
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the text must be a string with words in it, got {described(text)}.")
        if getattr(self.module, "main_input_name", "") == "pixel_values":
            raise ValueError(
                f"{self.name} reads images, not texts: pass a tensor of pixels to model.tokens."
            )
        if self._encoder is None:
            raise ValueError(
                f"{self.name} came without a tokenizer: pass a tensor of token ids instead of a"
                " text."
            )
        ids = torch.tensor(list(self._encoder(text)), dtype=torch.long, device=self.device)
        if not len(ids):
            raise ValueError("the tokenizer found no token in the text.")
        return ids

    def norm_radius(self, layer: int) -> float | None:
        r"""A proved bound on the token norm at the attention input, or None.

        LayerNorm gives $\sqrt d \max|g| + \|b\|$; RMSNorm gives $\sqrt d \max|g|$.
        """
        self._check_layer(layer)
        norm: Any = self.input_norm(layer)
        gain = norm.weight.detach().double()
        bias = getattr(norm, "bias", None)
        shift = 0.0 if bias is None else float(bias.detach().double().norm())
        return float(gain.numel() ** 0.5 * gain.abs().max()) + shift

    # How the parts are put together.

    def _apply(self, layer: int, part: Part, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if part == "block":
            return self.run_block(layer, x)
        if part == "attention":
            return self.attend(layer, x)
        if self.pre_norm:
            out = self.attend(layer, self.norm(layer)(x))
            return x + out if part == "residual" else out
        out = x + self.attend(layer, x)
        return out if part == "residual" else self.norm(layer)(out)

    def _hidden(self, inputs: Tensor, layer: int, part: Part) -> Float[Tensor, "b n d"]:
        """The input of a part, caught while the model runs; the layers after it are not
        evaluated.
        """
        x = caught(self.blocks[layer], lambda: self._run(inputs)).hidden
        return self.norm(layer)(x) if part == "attention" and self.pre_norm else x

    def _run(self, inputs: Tensor) -> None:
        self.module(input_ids=inputs, use_cache=False)

    def _inputs(self, source: str | Tensor) -> tuple[Tensor, bool]:
        """A (B, n) stack of ids the model can take, and whether it came as a stack."""
        ids = self.encode(source) if isinstance(source, str) else source
        if (
            not isinstance(ids, Tensor)
            or ids.dtype not in (torch.int64, torch.int32)
            or ids.ndim not in (1, 2)
            or not ids.numel()
        ):
            raise ValueError(
                "tokens needs a text, or whole-number ids of shape (n,) or (B, n), got"
                f" {described(source)}."
            )
        if ids.shape[-1] > self.positions:
            raise ValueError(
                f"{self.name} takes at most {self.positions} tokens, got {ids.shape[-1]}. Use"
                " shorter sequences."
            )
        vocabulary = int(self.config.vocab_size)
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError(
                f"ids must lie in 0..{vocabulary - 1}, got values from {int(ids.min())} to"
                f" {int(ids.max())}."
            )
        return ids.to(self.device).reshape(-1, ids.shape[-1]), ids.ndim == 2

    def _check_layer(self, layer: int) -> None:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise ValueError(
                f"layer must be a whole number from 0 to {self.layers - 1} ({self.name} has"
                f" {self.layers}), got {layer!r}."
            )

    def check_still(self) -> None:
        if any(part.training for part in self.module.modules()):
            raise ValueError(
                f"{self.name} is in training mode, so dropout would make its maps random: call"
                " module.eval() first."
            )


@contextmanager
def plain_algebra() -> Iterator[None]:
    """Attention inside PyTorch without fused kernels, which have no forward derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def check_part(part: object) -> None:
    """Refuse a part that does not exist."""
    if part not in PARTS:
        raise ValueError(
            f"part must be one of {', '.join(repr(name) for name in PARTS)}, got {part!r}."
        )
