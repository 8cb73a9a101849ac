"""What a model reads: texts, token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attnscope.models._layers import Layers
from attnscope.validation import described

Encoder = Callable[[str], Sequence[int]]
"""Turns a text into token ids, without special tokens."""


class Reader(Layers):
    """A network that reads token ids, and texts where it has a tokenizer."""

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name)
        self._encoder = encoder

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
