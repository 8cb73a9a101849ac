"""From texts to ids and back to the text of a single token."""

from __future__ import annotations

import re
import warnings
import zlib
from typing import Any, final

from attnscope.models._base import ModelNotice


@final
class Vocabulary:
    """A tokenizer of Hugging Face, without its special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._encoded(text, special=False)

    def frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        whole, plain = self._encoded("a", special=True), self("a")
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        raise ValueError("the tokenizer changes a text when it adds special tokens to it.")

    def _encoded(self, text: str, special: bool) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special, verbose=False)
        except Exception as error:  # compiled tokenizers raise Exception itself
            raise ValueError(
                f"the tokenizer of this model cannot read the text ({error}): its files are damaged"
                " or lack a token for what is unknown; copy them again, or give ids instead."
            ) from error
        return ids

    def piece(self, number: int) -> str:
        """The text of one token, blanks and word boundaries as the tokenizer writes them."""
        return str(self._tokenizer.decode([number], clean_up_tokenization_spaces=False))


@final
class WordNumbers:
    """A stand-in tokenizer for a model without one: words and signs, numbered by their CRC-32
    modulo the size of the vocabulary.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._words: dict[int, dict[str, None]] = {}

    def __call__(self, text: str) -> list[int]:
        warnings.warn(
            f"{self._name} has no tokenizer: its tokens are the words and signs of the text,"
            f" numbered by CRC-32 modulo {self._size}.",
            ModelNotice,
            stacklevel=3,
        )
        words = re.findall(r"\w+|[^\w\s]", text)
        numbers = [zlib.crc32(word.encode()) % self._size for word in words]
        for word, number in zip(words, numbers, strict=True):
            self._words.setdefault(number, {})[word] = None
        return numbers

    def piece(self, number: int) -> str | None:
        """The word of this number among those seen; several that share it are all named."""
        return "/".join(self._words.get(number, {})) or None
