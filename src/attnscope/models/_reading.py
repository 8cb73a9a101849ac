"""What a model reads: texts, token ids, what a tokenizer returns, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
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
        if self.sees_images:
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

    def frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that this model's tokenizer puts before and after a text."""
        own = getattr(self._encoder, "frame", None)
        if own is None:
            raise ValueError(f"{self.name} came without a tokenizer, so it has no special tokens.")
        before, after = own()
        return before, after

    def sequences(
        self, source: str | Sequence[str] | Mapping[str, Tensor]
    ) -> list[Int[Tensor, " n"]]:
        """The ids of texts of any lengths, without padding: a padded token is no part of the map.

        Args:
            source: A text, several, or what a tokenizer returns: `input_ids` with an
                `attention_mask` of the same shape, 1 where a token is read.
        """
        if isinstance(source, str):
            return [self.encode(source)]
        if not isinstance(source, Mapping):
            return [self.encode(text) for text in source]
        ids, mask = source["input_ids"], source.get("attention_mask")
        ids = ids.reshape(-1, ids.shape[-1])
        if mask is None:
            return list(ids)
        if not isinstance(mask, Tensor) or mask.numel() != ids.numel() or mask.ndim > 2:
            raise ValueError(
                f"the attention_mask must have the shape of the input_ids, {tuple(ids.shape)}, got"
                f" {described(mask)}."
            )
        read = mask.reshape(ids.shape).bool()
        starts = torch.diff(read.int(), prepend=torch.zeros_like(read[:, :1]).int()).eq(1).sum(-1)
        if bool((starts != 1).any()):
            raise ValueError(
                "each row of the attention_mask must read one stretch of tokens, padded on one side"
                " or on both."
            )
        return [row[keep] for row, keep in zip(ids, read, strict=True)]

    def pieces(self, ids: Int[Tensor, " n"]) -> list[str]:
        """What each of these ids stands for, as text; its number where the model has no
        vocabulary.
        """
        read = getattr(self._encoder, "piece", lambda number: None)
        return [read(number) or f"#{number}" for number in ids.tolist()]

    def _inputs(self, source: str | Tensor) -> tuple[Tensor, bool]:
        """A (B, n) stack of ids the model can take, and whether it came as a stack."""
        ids = self.encode(source) if isinstance(source, str) else source
        if isinstance(ids, Tensor) and ids.is_floating_point():
            return self._embedded(ids)
        if (
            not isinstance(ids, Tensor)
            or ids.dtype not in (torch.int64, torch.int32)
            or ids.ndim not in (1, 2)
            or not ids.numel()
        ):
            raise ValueError(
                "tokens needs a text, whole-number ids of shape (n,) or (B, n), or embeddings of"
                f" shape (n, d) or (B, n, d), got {described(source)}."
            )
        self._check_length(ids.shape[-1])
        vocabulary = int(self.config.vocab_size)
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError(
                f"ids must lie in 0..{vocabulary - 1}, got values from {int(ids.min())} to"
                f" {int(ids.max())}."
            )
        return ids.to(self.device).reshape(-1, ids.shape[-1]), ids.ndim == 2

    def _embedded(self, given: Float[Tensor, "*stack n d"]) -> tuple[Tensor, bool]:
        """Embeddings in place of ids, as this model's own table would make them."""
        table: Any = self.module
        width = table.get_input_embeddings().weight.shape[-1]
        if given.ndim not in (2, 3) or given.shape[-1] != width or not given.numel():
            raise ValueError(
                f"{self.name} reads whole-number ids, or embeddings of shape (n, {width}) or"
                f" (B, n, {width}), got"
                f" {described(given)}."
            )
        self._check_length(given.shape[-2])
        stacked = given.reshape(-1, *given.shape[-2:])
        return stacked.to(self.device, self.dtype), given.ndim == 3
