"""Is a model behind the door? Its attention must go through ours, and nothing may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.models._catch import first, hooked
from attnscope.models._rebuilt import ROUNDING, gap
from attnscope.models._stack import attentions
from attnscope.models._taps import TAPPED, Overheard, listening, register_taps

if TYPE_CHECKING:
    from attnscope.models._layers import Layers

SAMPLE = 6


def behind_door(model: Layers) -> bool:
    """Run a sample with the model's own attention and with ours: every layer that has attention
    must have called ours as often as it was applied, and every layer must answer as before.

    Some models accept the name and ignore it, others make masks that only their own attention
    understands; they keep their own.
    """
    if not hasattr(model.module, "config"):
        return False
    drawn = model.sample(min(SAMPLE, model.positions))
    if drawn is None or drawn.is_meta or not register_taps():
        return False
    heard = Overheard()
    try:
        own = _answers(model, drawn)
        model.plainly.door = TAPPED
        with listening(heard):
            ours = _answers(model, drawn)
    except Exception:  # whatever a model makes of an attention that it does not know
        return False
    finally:
        model.plainly.door = None
    wanted = {block for block in model.blocks if next(attentions(block), None) is not None}
    for block in wanted:
        inside = set(block.modules())
        calls = sum(call.module in inside for call in heard.calls)
        if calls < model.blocks.count(block):
            return False
    same = all(gap(a, b) <= ROUNDING[model.dtype] for a, b in zip(ours, own, strict=True))
    return bool(wanted) and same


def _answers(model: Layers, drawn: Tensor) -> list[Tensor]:
    """What every layer gives back."""
    found: list[Tensor] = []

    def after(_: nn.Module, __: Any, out: Any) -> None:
        found.append(first(out))

    handles = [block.register_forward_hook(after) for block in dict.fromkeys(model.blocks)]
    with hooked(handles), torch.no_grad(), model.plainly():
        model.run(drawn)
    return found
