r"""Listening at the door: what a model's own code hands to its attention.

Under the name "attnscope-tap" transformers calls the attention of `models/door.py`, and whoever
listens hears queries, keys, values, mask, scale, soft-cap and sinks, or lets a single head speak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.models.door import (
    NAME,
    _as_mask_or_bias,
    _without_mask,
    attention_forward,
    attention_mask,
)

TAPPED = f"{NAME}-tap"

Change = Callable[["Heard"], "Heard | Tensor"]
_LISTENERS: list[Change] = []


@dataclass(frozen=True, eq=False)
class Heard:
    """One call of the attention: what `attention_forward` was given."""

    module: nn.Module
    query: Float[Tensor, "b h m k"]
    key: Float[Tensor, "b g n k"]
    value: Float[Tensor, "b g n v"]
    mask: Tensor | None
    told: dict[str, Any]

    def only(self, head: int) -> Heard:
        """The call of a single head."""
        group = head * self.key.shape[1] // self.query.shape[1]
        mask = self.mask
        if mask is not None and mask.shape[1] > 1:
            mask = mask[:, head : head + 1]
        told = dict(self.told)
        for name in ("position_bias", "s_aux"):
            own = told.get(name)
            if own is not None:
                axis = 0 if own.ndim == 1 else 1
                told[name] = own.narrow(axis, head, 1) if own.shape[axis] > 1 else own
        return Heard(
            self.module,
            self.query[:, head : head + 1],
            self.key[:, group : group + 1],
            self.value[:, group : group + 1],
            mask,
            told,
        )

    def attend(self) -> Float[Tensor, "b m h v"]:
        """The output of the attention, by the door's kernel."""
        out, _ = attention_forward(
            self.module, self.query, self.key, self.value, self.mask, **self.told
        )
        return out

    def scores(self) -> tuple[Float[Tensor, "b h m n"], Float[Tensor, "b h m n"]]:
        r"""$z_{ij} = s\langle q_i, k_j\rangle$ and what is added after the soft-cap: biases, and
        $-\infty$ where a mask hides a key.
        """
        q, k, told = self.query.double(), self.repeated(self.key).double(), self.told
        z = self.scale * (q @ k.mT)
        if self.mask is None:
            allowed = _without_mask(self.module, told.get("is_causal"), self.query, self.key)
            bias = None
        else:
            allowed, bias = _as_mask_or_bias(self.mask, self.query, self.key)
        added = torch.zeros_like(z)
        for extra in (bias, told.get("position_bias")):
            added = added if extra is None else added + extra.double()
        if allowed is not None:
            added = added.masked_fill(~_readable(allowed, k.shape[2]), -torch.inf)
        return z, added

    def repeated(self, shared: Float[Tensor, "b g n k"]) -> Float[Tensor, "b h n k"]:
        """Keys or values with a copy for each head that reads them."""
        return shared.repeat_interleave(self.query.shape[1] // shared.shape[1], dim=1)

    @property
    def scale(self) -> float:
        """Of the scores."""
        told = self.told.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if told is None else told)

    @property
    def softcap(self) -> float | None:
        cap = self.told.get("softcap")
        return None if cap is None else float(cap)

    @property
    def sinks(self) -> Float[Tensor, " h"] | None:
        own = self.told.get("s_aux")
        return None if own is None else own.detach().double().reshape(-1)


def _readable(allowed: Tensor, n: int) -> Bool[Tensor, "b h m n"]:
    if allowed.dtype == torch.bool:
        return allowed
    at = torch.arange(n, device=allowed.device)
    return (at >= allowed[..., :1]) & (at < allowed[..., 1:2])


def tap_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **told: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: the door's attention, heard by whoever listens."""
    heard = Heard(module, query, key, value, attention_mask, told)
    for listener in _LISTENERS:
        answer = listener(heard)
        if isinstance(answer, Tensor):
            return answer, None
        heard = answer
    return heard.attend(), None


def register_taps() -> bool:
    """Make the tap known to transformers; False where there is none."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError:
        return False
    AttentionInterface.register(TAPPED, tap_forward)
    AttentionMaskInterface.register(TAPPED, attention_mask)
    return True


@contextmanager
def listening(listener: Change) -> Iterator[None]:
    """Let `listener` hear every call of the attention, and answer with a call or an output."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


@final
class Overheard:
    """A listener that keeps what it hears and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[Heard] = []

    def __call__(self, heard: Heard) -> Heard:
        self.calls.append(heard)
        return heard


def alone(head: int) -> Change:
    """A listener that lets one head speak and silences the others."""

    def speak(heard: Heard) -> Tensor:
        count = heard.query.shape[1]
        out = heard.only(head).attend()
        return torch.nn.functional.pad(out, (0, 0, head, count - 1 - head))

    return speak


def silent(heard: Heard) -> Tensor:
    """A listener that lets no head speak."""
    b, h, m, _ = heard.query.shape
    return heard.query.new_zeros(b, m, h, heard.value.shape[-1])
