r"""What a model family promises: the layers of a real network as maps on tokens.

A *part* of a layer is one of five maps $(n, d) \to (n, d)$. With attention $f$, the norm $N$ beside
it, the MLP $m$ with the norm before it, and the residual stream $x$:

| part | pre-norm (GPT-2, Llama, ViT) | post-norm (BERT) |
|---|---|---|
| attention | $f$, at $N(x)$ | $f$, at $x$ |
| norm+attention | $x \mapsto f(N(x))$ | $x \mapsto N(x + f(x))$ |
| residual | $x \mapsto x + f(N(x))$ | $x \mapsto x + f(x)$ |
| mlp | $m$, at $x + f(N(x))$ | $m$, at $N(x + f(x))$ |
| block | the whole layer | the whole layer |

Every part is run by the layer itself, from one point inside it to another, so that adapters, hooks
and parametrisations count.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.models._layers import Layers
from attnscope.models._parts import Part, check_part
from attnscope.models._perturbation import Perturbation
from attnscope.models._rebuilt import difference, radius_holds
from attnscope.models._stack import attentions
from attnscope.validation import described

Encoder = Callable[[str], Sequence[int]]
"""Turns a text into token ids, without special tokens."""


class ModelNotice(UserWarning):
    """Something about a model that the reader of its numbers should know."""


class Model(Layers):
    """A network whose layers are maps on tokens. `module` is the network itself, in eval mode and
    never changed.
    """

    family: ClassVar[str]
    types: ClassVar[tuple[str, ...]] = ()
    """The Hugging Face model types (`config.model_type`) that this family serves."""
    pre_norm: bool
    """Whether the norm stands before the attention, or after the residual."""

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name)
        self._encoder = encoder
        self._told: set[int] = set()

    # What a family writes.

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a token reads only itself and the tokens before it."""

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

    # What users call.

    @property
    def heads(self) -> int:
        return int(self.config.num_attention_heads)

    def __repr__(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        return (
            f"{type(self).__name__}({self.name!r}, {self.layers} layers, {self.heads} heads, dim"
            f" {self.dim}, {kind}, {self.dtype})"
        )

    def rebuilt(self, layer: int) -> bool:
        """Whether the heads read from the weights of this layer are what its modules compute.

        Compared on random tokens whenever it is asked: an adapter, a hook or a parametrisation
        makes another map of the same weights. Where it is False the layer's own modules are
        differentiated, without single heads or bounds, and a `ModelNotice` says so once.
        """
        self._check_layer(layer)
        if not self.readable(layer):
            return False
        found = difference(self, layer)
        if found and layer not in self._told:
            self._told.add(layer)
            warnings.warn(
                f"{found}. Its own modules are differentiated instead, without single heads or"
                " bounds.",
                ModelNotice,
                stacklevel=2,
            )
        return not found

    def attends(self, layer: int) -> bool:
        """Whether this layer has attention; hybrids have some that do not."""
        self._check_layer(layer)
        return next(attentions(self.blocks[layer]), None) is not None

    def readable(self, layer: int) -> bool:
        """Whether the family can read heads from the weights of this layer at all."""
        return True

    def attention(self, layer: int) -> Softmax:
        """The attention of this layer as a map between measures, to be used at `tokens(...,
        layer)`. Refused where the layer's own modules compute something else (see `rebuilt`).
        """
        self._check_layer(layer)
        made = self.from_weights(layer)
        if found := difference(self, layer):
            raise ValueError(f"{found}. Use model.function(layer, part) instead.")
        return made

    def from_weights(self, layer: int) -> Softmax:
        """The attention that the weights of this layer spell, whatever its modules make of it."""
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
            with self.plainly():
                running = self._running(layer, x.shape[-2])
                return self._each(partial(running.apply, part), x).reshape(x.shape)

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
        with torch.no_grad(), self.plainly():
            x = self._hidden(inputs, layer, part)
        return x if stacked else x[0]

    def points(
        self, ids: Int[Tensor, "samples n"], layers: Sequence[int], part: Part = "block"
    ) -> Iterator[tuple[int, Float[Tensor, "samples n d"], Float[Tensor, "samples n d"]]]:
        """Each of these layers with the input point of the part there and what its attention reads,
        in one pass through the blocks.
        """
        wanted = sorted(set(layers))
        x = self.tokens(ids, wanted[0], "block")
        for layer in range(wanted[0], wanted[-1] + 1):
            if layer in wanted:
                yield layer, self.entry(layer, x, part), self.read(layer, x)
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
        if self._sees_images:
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
        r"""A proved bound on the token norm at the attention input, or None where the norm is not
        the last to touch the tokens (a hook may follow it).

        LayerNorm gives $\sqrt d \max|g| + \|b\|$; RMSNorm gives $\sqrt d \max|g|$.
        """
        self._check_layer(layer)
        if not radius_holds(self, layer):
            return None
        norm: Any = self.input_norm(layer)
        gain = norm.weight.detach().double()
        bias = getattr(norm, "bias", None)
        shift = 0.0 if bias is None else float(bias.detach().double().norm())
        return float(gain.numel() ** 0.5 * gain.abs().max()) + shift

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
        self._check_length(ids.shape[-1])
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
