"""A network as two files: its weights as safetensors, its description as JSON. Nothing is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from attnscope.files import write_atomically
from attnscope.nets.config import Config
from attnscope.nets.transformer import Transformer
from attnscope.validation import described, parsed

VERSION = 1
"""Of the files; raised whenever old ones could no longer be read rightly."""
WEIGHTS, DESCRIPTION = "network.safetensors", "config.json"


def save(network: Transformer, folder: str | Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write the network into a folder. `notes` is kept beside the description: how it was trained,
    what it reached.
    """
    if not isinstance(network, Transformer):
        raise TypeError(f"save needs a Transformer, got {described(network)}.")
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()
    }
    _check_finite(state, "this network")
    weights = safetensors.torch.save(state)
    description = {
        "format": "attnscope network",
        "version": VERSION,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "config": network.config.as_dict(),
        "notes": dict(notes or {}),
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / WEIGHTS, weights)
    write_atomically(target / DESCRIPTION, json.dumps(description, indent=1) + "\n")


def load(folder: str | Path) -> Transformer:
    """The network that `save` wrote there, in the dtype in which it was saved."""
    description = describe(folder)
    config = Config.from_dict(description["config"])
    path = Path(folder) / WEIGHTS
    try:
        content = path.read_bytes()
        state = safetensors.torch.load(content)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the weights {str(path)!r} cannot be read ({error}): the file is missing or cut off,"
            " copy it again."
        ) from error
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        raise ValueError(
            f"{str(path)!r} is not the file that {DESCRIPTION} describes (its sha256 differs): copy"
            " both files again."
        )
    _check_finite(state, f"{str(path)!r}")
    # before it is built: a description may ask for more than any machine holds
    held = sum(tensor.numel() for tensor in state.values())
    if config.least_numbers() > held:
        raise ValueError(
            f"{str(path)!r} does not hold the network of {DESCRIPTION}: it has {held} numbers, the"
            f" network at least {config.least_numbers()}."
        )
    network = _built(config, path)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        wrong = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        raise ValueError(
            f"{str(path)!r} does not hold the network of {DESCRIPTION}: {', '.join(wrong[:4])}"
            " missing, left over or misshaped."
        )
    kinds = {tensor.dtype for tensor in state.values()}
    if kinds not in ({torch.float32}, {torch.float64}):
        raise ValueError(
            f"{str(path)!r} must hold float32 or float64 numbers, all of one kind, got"
            f" {', '.join(sorted(map(str, kinds)))}."
        )
    network.to(kinds.pop()).load_state_dict(state)
    return network


def _built(config: Config, path: Path) -> Transformer:
    try:
        return Transformer(config)
    except TypeError as error:  # the options of its attention
        raise ValueError(
            f"the {DESCRIPTION} beside {str(path)!r} describes no network ({error}): copy the file"
            " again."
        ) from error


def shipped(name: str = "digits") -> Path:
    """The folder of a network that comes with the package; its control, trained with
    A = 0, is in `control` there.
    """
    folder = Path(str(resources.files("attnscope.nets") / name))
    if not (folder / DESCRIPTION).exists():
        raise ValueError(
            f'no network called {name!r} comes with attnscope: the one that does is "digits".'
        )
    return folder


def describe(folder: str | Path) -> dict[str, Any]:
    """The description beside the weights: config, notes, version; checked."""
    path = Path(folder) / DESCRIPTION
    try:
        description = parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{str(folder)!r} holds no network: {DESCRIPTION} cannot be read"
            f" ({error.strerror or error})."
        ) from error
    except ValueError as error:  # also numbers of too many digits
        raise ValueError(f"{str(path)!r} is not JSON ({error}): copy the file again.") from error
    if not isinstance(description, dict) or description.get("format") != "attnscope network":
        raise ValueError(f"{str(path)!r} does not describe a network of attnscope.")
    if description.get("version") != VERSION:
        raise ValueError(
            f"{str(path)!r} is of version {description.get('version')!r}, this attnscope reads"
            f" version {VERSION}: train the network again."
        )
    if not isinstance(description.get("config"), dict) or not isinstance(
        description.get("sha256"), str
    ):
        raise ValueError(
            f"{str(path)!r} lacks its config or the sha256 of its weights: copy the file again."
        )
    if not isinstance(description.setdefault("notes", {}), dict):
        raise ValueError(
            f"the notes of {str(path)!r} must be an object, got {described(description['notes'])}:"
            " copy the file again."
        )
    return description


def _check_finite(state: Mapping[str, torch.Tensor], where: str) -> None:
    bad = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ValueError(
            f"{where} holds NaN or infinite numbers in {', '.join(bad[:4])}: training must have"
            " diverged, train it again."
        )
