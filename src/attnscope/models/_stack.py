"""Finding the layers of a network: the list of blocks that carries its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.models._catch import first, hooked, tensors


def attentions(module: nn.Module) -> Iterator[nn.Module]:
    """Every module inside whose class is called attention."""
    for part in module.modules():
        name = type(part).__name__.lower()
        if "attention" in name or "attn" in name:
            yield part


def layers_of(module: nn.Module, run: Callable[[], object] | None) -> list[nn.Module]:
    """The layers in the order in which they are applied, as often as they are applied.

    A layer is an element of an outermost list of modules some of which hold attention; of several
    lists the one that a run applies most often. Without a run each element counts once.
    """
    if isinstance(module, nn.TransformerEncoderLayer):
        return [module]
    candidates = _lists(module)
    if not candidates:
        return _alone(module)
    if run is None:
        return max(candidates, key=len)
    applied, changing = _applied(candidates, run)
    if applied:
        return max(applied, key=len)
    if changing:
        raise ValueError(
            f"the layers of {type(module).__name__} change the number or the width of the tokens"
            f" ({changing}), so they are not maps from tokens to tokens of one kind. Pass one of"
            " its stages as a module."
        )
    return max(candidates, key=len)


def _alone(module: nn.Module) -> list[nn.Module]:
    """The outermost attention modules of a network without a list of blocks."""
    found: list[nn.Module] = []
    for part in attentions(module):
        if not any(part in set(outer.modules()) for outer in found):
            found.append(part)
    if not found:
        raise ValueError(
            f"{type(module).__name__} holds no module that looks like attention, so there is no"
            " layer to measure."
        )
    return found


def _lists(module: nn.Module) -> list[list[nn.Module]]:
    found: list[list[nn.Module]] = []
    inside: set[nn.Module] = set()
    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential) and part not in inside:
            blocks = list(part)
            if isinstance(part, nn.Sequential) and len({type(block) for block in blocks}) > 1:
                continue  # stages of a network, not layers of one kind
            if any(next(attentions(block), None) is not None for block in blocks):
                found.append(blocks)
                inside.update(part.modules())
    return found


def _applied(
    lists: list[list[nn.Module]], run: Callable[[], object]
) -> tuple[list[list[nn.Module]], str]:
    """For each list the calls of its elements during a run; and what a layer does that keeps it
    from being a map on tokens of one kind.
    """
    home = {block: i for i, blocks in enumerate(lists) for block in blocks}
    calls: list[list[nn.Module]] = [[] for _ in lists]
    changing: dict[int, str] = {}

    def after(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        given, result = next(tensors(args, kwargs), None), first(out)
        calls[home[module]].append(module)
        if not isinstance(given, Tensor) or not isinstance(result, Tensor):
            changing[home[module]] = f"{type(module).__name__} returns no tokens"
        elif given.shape != result.shape:
            changing[home[module]] = (
                f"{type(module).__name__} maps {tuple(given.shape)} to {tuple(result.shape)}"
            )

    handles = [block.register_forward_hook(after, with_kwargs=True) for block in home]
    with hooked(handles), torch.no_grad():
        run()
    good = [found for i, found in enumerate(calls) if found and i not in changing]
    return good, next(iter(changing.values()), "")


def sample(module: nn.Module, n: int, generator: torch.Generator) -> Tensor | None:
    """An input of n tokens that a Hugging Face network can read; None where that is not known."""
    config: Any = getattr(module, "config", None)
    kind = getattr(module, "main_input_name", None)
    if config is None or kind is None:
        return None
    if kind == "input_ids":
        size = getattr(config.get_text_config(), "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            return None
        # Small numbers tend to be special: padding, ends, placeholders of images.
        return (torch.arange(n) + size // 2).remainder(size)[None]
    if kind == "pixel_values":
        return _pixels(config, generator)
    if kind == "input_values" and hasattr(config, "num_mel_bins"):
        return torch.randn(1, config.max_length, config.num_mel_bins, generator=generator)
    if kind == "input_values" and hasattr(config, "conv_stride"):
        return torch.randn(1, math.prod(config.conv_stride) * (n + 2), generator=generator)
    if kind == "input_features":
        mel, longest = config.num_mel_bins, getattr(config, "max_source_positions", n)
        return torch.randn(1, mel, 2 * longest, generator=generator)
    return None


def _pixels(config: Any, generator: torch.Generator) -> Tensor | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sides) != 2:
        return None
    return torch.randn(1, channels, *sides, generator=generator)
