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

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import Bounds
from attnscope.measures import Particles
from attnscope.models._head import reheaded
from attnscope.models._part_bounds import part_bounds
from attnscope.models._parts import Part, check_part
from attnscope.models._perturbation import Perturbation
from attnscope.models._reading import Encoder
from attnscope.models._rebuilt import difference, largest_norm, radius_holds
from attnscope.models._spans import Place, Spanned, span_jacobian
from attnscope.models._stack import attentions
from attnscope.models._state import state_of
from attnscope.models._tapping import (
    Tap,
    bounds_at,
    check_covered,
    check_heads,
    check_tapped,
    holds,
    tap,
)
from attnscope.models._taps import alone, listening, silent
from attnscope.operators import LinearOperator
from attnscope.operators.precision import widened
from attnscope.validation import described


class ModelNotice(UserWarning):
    """Something about a model that the reader of its numbers should know."""


class Model(Spanned):
    """A network whose layers are maps on tokens. `module` is the network itself, in eval mode and
    never changed.
    """

    family: ClassVar[str]
    types: ClassVar[tuple[str, ...]] = ()
    """The Hugging Face model types (`config.model_type`) that this family serves."""
    pre_norm: bool
    """Whether the norm stands before the attention, or after the residual."""

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name, encoder)
        self._told: set[int] = set()
        self._double: Model | None = None
        self._double_of: tuple[Any, ...] = ()

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

    def rebuilt(
        self, layer: int, x: Float[Tensor, "*stack n d"] | None = None, part: Part = "attention"
    ) -> bool:
        """Whether the heads read from the weights of this layer are what its modules compute.

        Compared on random tokens whenever it is asked, and at tokens x of a part: adapters and
        hooks make another map of the same weights, windows and what clips at some tokens only.
        Where it is False the layer's own modules are differentiated; a `ModelNotice` says so once.
        """
        self._check_layer(layer)
        if not self.readable(layer):
            return False
        found = difference(self, layer, x, part)
        if found and layer not in self._told:
            self._told.add(layer)
            warnings.warn(
                f"{found}. Its own modules are differentiated instead, without bounds on a ball.",
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

    def function(
        self, layer: int, part: Part = "attention", head: int | None = None
    ) -> Callable[[Tensor], Tensor]:
        """A part of this layer as a differentiable map (..., n, d) -> (..., n, d), evaluated by the
        model's own modules; with a head, what that head alone adds to the attention.
        """
        self._check_layer(layer)
        check_part(part)
        self.check_still()
        if head is not None:
            return self._one_head(layer, part, head)

        def layer_part(x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
            if x.ndim < 2 or x.shape[-1] != self.dim:
                raise ValueError(
                    f"{part} of layer {layer} needs tokens of shape (..., n, {self.dim}), got"
                    f" {described(x)}."
                )
            running = self.running(layer, x.shape[-2])
            with self.plainly():
                return self._each(partial(running.apply, part), x).reshape(x.shape)

        return layer_part

    def _one_head(self, layer: int, part: Part, head: int) -> Callable[[Tensor], Tensor]:
        if part != "attention":
            raise ValueError(f"single heads are of the part attention only, got part {part!r}.")
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < self.heads:
            raise ValueError(
                f"head must be a whole number from 0 to {self.heads - 1} ({self.name} has"
                f" {self.heads}), got {head!r}."
            )
        if not self.tapped and self.rebuilt(layer):
            one = Softmax(self.layer_heads(layer).select(head), causal=self.causal)
            return lambda x: one(x, Particles(x))
        check_heads(self, layer)
        whole = self.function(layer, "attention")

        def single(x: Tensor) -> Tensor:
            with listening(alone(head)):
                own = whole(x)
            with listening(silent):  # a bias belongs to no head; behind a gate it moves with x
                return own - whole(x)

        return single

    def has_heads(self, layer: int) -> bool:
        """Whether single heads of this layer can be measured: its weights spell them, or a tap sees
        them.
        """
        self._check_layer(layer)
        return self.rebuilt(layer) or holds(partial(check_heads, self, layer))

    def has_bounds(self, layer: int) -> bool:
        """Whether theorems hold for the attention of this layer at its tokens: its weights spell
        heads, or a tap sees token-wise maps, softmax and a linear map out.
        """
        self._check_layer(layer)
        return self.rebuilt(layer) or holds(partial(check_covered, self, layer))

    def jacobian(
        self,
        layer: int | tuple[Place, Place],
        source: str | Tensor,
        part: Part = "attention",
        head: int | None = None,
    ) -> LinearOperator:
        """The derivative of a part of this layer, of one of its heads, or of a span, at the tokens
        of a text.

        A model in float32 finishes lower bounds with products of its copy in float64.

        Args:
            layer: its number, from 0; or the start and the stop of a span.
            source: what `tokens` takes; a stack gives a stack of operators.
            part: which part.
            head: a single head of the part attention.

        Returns:
            The operator, at `tokens(source, layer, part)`.
        """
        from attnscope.models._jacobian import head_jacobian, part_jacobian

        if isinstance(layer, tuple):
            if part != "attention" or head is not None:
                raise ValueError("a span goes through whole blocks: leave part and head out.")
            return span_jacobian(self, *layer, source)
        x = self.tokens(source, layer, part)
        if head is not None:
            return head_jacobian(self, layer, x, head, self.doubled())
        return part_jacobian(self, layer, part, x, self.doubled())

    def doubled(self) -> Model | None:
        """The same model in float64; None if it is that already."""
        if self.dtype == torch.float64:
            return None
        state = state_of(self.module)
        if self._double is None or self._double_of != state:
            self._double_of = state
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ModelNotice)
                module = widened(copy.deepcopy(self.module), self.device)
                self._double = type(self)(module, self.name, self._encoder)
                self._double.head = lambda wide: reheaded(self.whole(), self.module, wide)
        return self._double

    def tap(self, layer: int, source: str | Tensor) -> Tap:
        """The coupling of every head of this layer on one text, and its statistics: the token that
        is read most, the entropy, the largest score.
        """
        return tap(self, layer, self._tappable(layer, source))

    def bounds(self, layer: int, source: str | Tensor, part: Part = "attention") -> Bounds:
        """Proved bounds on the derivative of the attention of this layer at one text, for any model
        behind the door, or of the part `norm+attention` or `residual`; in float64.
        """
        model = self.doubled() or self
        x = self._tappable(layer, source).double()
        check_tapped(model, layer)
        found = bounds_at(model, layer, x)
        stream = self.tokens(source, layer, "block").double()
        return found if part == "attention" else part_bounds(model, layer, part, stream, found)

    def _tappable(self, layer: int, source: str | Tensor) -> Float[Tensor, "n d"]:
        x = self.tokens(source, layer, "attention")
        check_tapped(self, layer)
        if x.ndim != 2:
            raise ValueError(f"a tap hears one sequence, got {described(source)}.")
        return x

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
        with torch.no_grad():
            x = self._hidden(inputs, layer, part)
        return x if stacked else x[0]

    def points(
        self, ids: Shaped[Tensor, "samples ..."], layers: Sequence[int], part: Part = "block"
    ) -> Iterator[tuple[int, Float[Tensor, "samples n d"], Float[Tensor, "samples n d"]]]:
        """Each of these layers with the input point of the part there and what its attention reads,
        in one pass through the blocks.
        """
        for layer in layers:
            self._check_layer(layer)
        self.check_still()
        found = self.streams(self._inputs(ids)[0], sorted(set(layers)))
        for layer in sorted(found):
            x = found.pop(layer)
            yield layer, self.entry(layer, x, part), self.read(layer, x)

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

    def norm_radius(self, layer: int) -> float | None:
        r"""A proved bound on the token norm at the attention input, or None where the norm is not
        the last to touch the tokens (a hook may follow it).
        """
        self._check_layer(layer)
        return largest_norm(self.input_norm(layer)) if radius_holds(self, layer) else None

    def _check_layer(self, layer: int) -> None:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise ValueError(
                f"layer must be a whole number from 0 to {self.layers - 1} ({self.name} has"
                f" {self.layers}), got {layer!r}."
            )
