"""The head of a network, which turns its last tokens into logits; fetched when it is asked for."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

HEADS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM")
"""How transformers calls classes whose heads give logits for every token."""

Maker = Callable[[nn.Module], nn.Module]
"""From the network without its head to the whole."""


def around(whole: nn.Module, inner: nn.Module) -> Maker | None:
    """The head of a network that is at hand: `inner` is the part of it without the head; None
    where there is none. What networks of one's own give back counts as their head's.
    """
    if whole is inner:
        return None if hasattr(whole, "config") else lambda module: module
    if not any(part is inner for part in whole.modules()):
        return None
    return lambda module: reheaded(whole, inner, module)


def reheaded(whole: nn.Module, inner: nn.Module, module: nn.Module) -> nn.Module:
    """The same head around another copy of the network, which is not copied again."""
    if module is inner:
        return whole
    kept = next(module.parameters())
    return copy.deepcopy(whole, {id(inner): module}).to(kept.device, kept.dtype)


def drawn(kind: str, seed: int) -> Maker:
    """A head with weights from a seed, around a network of transformers; `kind` names its class."""

    def make(module: nn.Module) -> nn.Module:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            return _dressed(getattr(_transformers(), kind)(_config(module)), module)

    return make


def stored(place: str, local: bool) -> Maker:
    """The head that lies with the weights in this folder or under this name."""

    def make(module: nn.Module) -> nn.Module:
        config = _config(module)
        kind = next(iter(getattr(config, "architectures", None) or ()), "")
        if not kind.endswith(HEADS) or not hasattr(_transformers(), kind):
            said = f"a {kind}" if kind else "a network without a head"
            raise ValueError(
                f"{place} was stored as {said}, which gives no logits for its tokens: use a span"
                ' to "last" or "final".'
            )
        whole, info = getattr(_transformers(), kind).from_pretrained(
            place,
            use_safetensors=True,
            dtype=next(module.parameters()).dtype,
            output_loading_info=True,
            local_files_only=local,
            trust_remote_code=False,
        )
        if info["missing_keys"]:
            missing = ", ".join(sorted(info["missing_keys"])[:3])
            raise ValueError(f"the head of {place} lacks {missing}: it would be random.")
        return _dressed(whole, module)

    return make


def _dressed(whole: Any, module: nn.Module) -> nn.Module:
    """The head of `whole` around this network, tied to its embedding where that is so."""
    setattr(whole, whole.base_model_prefix, module)
    whole.tie_weights()
    kept = next(module.parameters())
    made: nn.Module = whole.to(kept.device, kept.dtype).eval()
    return made


def _config(module: Any) -> Any:
    return module.config


def _transformers() -> Any:
    return importlib.import_module("transformers")
