"""An invertible stack as one .npz file: its weights as arrays, the rest as JSON. Nothing is ever
unpickled.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention, Heads, variants
from attnscope.files import write_atomically
from attnscope.nets.invertible.layer import FIXED, AttentionWeights
from attnscope.validation import parsed

FORMAT = "attnscope invertible 1"


def write(
    path: Path,
    layers: Sequence[AttentionWeights],
    state: Mapping[str, Tensor],
    settings: dict[str, Any],
) -> None:
    """One file, written whole or not at all."""
    about = [
        {
            "variant": layer.variant.name,
            "scale": layer.scale,
            "options": layer.options,
            "tied": layer.tied,
        }
        for layer in layers
    ]
    text = json.dumps({"format": FORMAT, "layers": about, "settings": settings})
    content = io.BytesIO()
    np.savez(
        content,
        allow_pickle=False,
        description=np.array(text),
        **{name: part.cpu().numpy() for name, part in state.items()},
    )
    write_atomically(path, content.getvalue())


def read(path: Path) -> tuple[list[Attention], dict[str, Any], dict[str, Tensor]]:
    """The attentions, the settings of the stack and its exact weights."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in arrays.files}
        about = parsed(str(held.pop("description")))
        if about["format"] != FORMAT:
            raise KeyError(about["format"])
        state = {name: torch.from_numpy(part) for name, part in held.items()}
        return (
            [_attention(number, layer, state) for number, layer in enumerate(about["layers"])],
            about["settings"],
            state,
        )
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}.") from None
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(
            f"{str(path)!r} is not an invertible stack that `Invertible.save` wrote, or it is cut"
            f" off ({error})."
        ) from error


def _attention(number: int, about: dict[str, Any], state: dict[str, Tensor]) -> Attention:
    start, weights = f"layers.{number}.", f"layers.{number}.weights."
    parts = {
        name.removeprefix(weights): part for name, part in state.items() if name.startswith(weights)
    }
    parts |= {name: state[start + name] for name in FIXED if start + name in state}
    if about["tied"]:
        parts |= {"key": parts["query"], "value": parts.pop("reads") @ parts["query"]}
    return variants()[about["variant"]](Heads(**parts, scale=about["scale"]), **about["options"])
