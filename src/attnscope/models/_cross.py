r"""Cross-attention as what it is: $x \mapsto \Gamma_\mu(x)$, $x$ the tokens of a decoder,
$\mu$ what its encoder made of the source; differentiated in either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.models._catch import FORGOTTEN, first, hooked
from attnscope.models._plain import Plain
from attnscope.operators import LinearOperator, jacobian
from attnscope.validation import described

STATES = "key_value_states"
"""What the decoders of transformers call the tokens of the encoder."""


@final
@dataclass(frozen=True, eq=False)
class CrossAttention:
    """The cross-attention of one layer of a decoder at one pair of sequences.

    `function(x, y)` is the attention of decoder tokens x over encoder tokens y, projection
    included, run by the layer's own module; `x` and `y` are what the layer read.
    """

    layer: int
    x: Float[Tensor, "n d"]
    y: Float[Tensor, "m e"]
    function: Callable[[Tensor, Tensor], Tensor]

    def in_queries(self) -> LinearOperator:
        """The derivative in the decoder's tokens, the measure fixed."""
        return jacobian(lambda x: self.function(x, self.y), self.x)

    def in_measure(self) -> LinearOperator:
        """The derivative in the encoder's tokens, the queries fixed."""
        return jacobian(lambda y: self.function(self.x, y), self.y)


def cross_attentions(module: nn.Module, source: Tensor, target: Tensor) -> list[CrossAttention]:
    """Every cross-attention of an encoder-decoder network, first layer first.

    Args:
        module: A network of transformers such as BART, T5 or Whisper, in eval mode.
        source: What its encoder reads, one sequence: ids (m,), or features without the batch axis.
        target: What its decoder reads: ids (n,).

    Returns:
        One for each layer, at the tokens that it reads.
    """
    config: Any = getattr(module, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{type(module).__name__} is no encoder with a decoder, so it has no cross-attention."
        )
    if module.training:
        raise ValueError(f"{type(module).__name__} is in training mode: call module.eval() first.")
    if not isinstance(target, Tensor) or target.ndim != 1 or target.is_floating_point():
        raise ValueError(f"target must be token ids of shape (n,), got {described(target)}.")
    heard: list[tuple[nn.Module, Tensor, dict[str, Any]]] = []

    def hear(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if isinstance(kwargs.get(STATES), Tensor):
            told = {name: value for name, value in kwargs.items() if name not in FORGOTTEN}
            x = args[0] if args else told.pop("hidden_states")
            heard.append((part, x, told))

    plainly, name = Plain(module), str(getattr(module, "main_input_name", "input_ids"))
    # The innermost modules that are told the encoder's tokens; T5 wraps its attention in a layer.
    handles = [part.register_forward_pre_hook(hear, with_kwargs=True) for part in module.modules()]
    with hooked(handles), torch.no_grad(), plainly():
        module(**{name: source[None]}, decoder_input_ids=target[None], use_cache=False)
    told = {part for part, _, _ in heard}
    inner = [call for call in heard if told.isdisjoint(set(call[0].modules()) - {call[0]})]
    return [
        CrossAttention(number, x[0], kwargs[STATES][0], _again(plainly, part, kwargs))
        for number, (part, x, kwargs) in enumerate(inner)
    ]


def _again(
    plainly: Plain, part: nn.Module, told: dict[str, Any]
) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Float[Tensor, "n d"], y: Float[Tensor, "m e"]) -> Float[Tensor, "n d"]:
        with plainly():
            return first(part(x[None], **(told | {STATES: y[None]})))[0]

    return function
