"""`Workbench`: what cells share in one process. A model, a text or a network is loaded once, and
its hash is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from attnscope.data.texts import text as read_text
from attnscope.models import Model, load
from attnscope.studies.cell import sha256

DTYPES = {"float32": torch.float32, "float64": torch.float64}
VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
"""Entries of a Hugging Face config that do not change the network."""


MODELS_KEPT = 2
"""Loaded models that are held at a time; a study may name thousands."""


class Stopped(Exception):
    """A cell was left because the user asked to stop."""


class Workbench:
    """Loads by name, once per process; also tells a running cell whether to go on.

    Args:
        watch: Told how much of the current cell is done, from 0 to 1, and what it is at; answers
            whether to go on. The driver puts its own here.
    """

    def __init__(self, watch: Callable[[float, str], bool] = lambda part, what: True) -> None:
        self.watch = watch
        self.cut = False
        """Whether the current cell was told to stop: what it returns then is a part."""
        self._kept: dict[Hashable, Any] = {}
        self._loaded: list[str] = []
        """Names of the models that were loaded, the latest last."""

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make()` gave when this name was asked for the first time."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def put(self, name: Hashable, value: Any) -> None:
        """Keep something that cannot be loaded by its name, such as a module made in Python."""
        self._kept[name] = value

    def found(self, name: Hashable) -> Any:
        """What is kept under this name, or None."""
        return self._kept.get(name)

    def drop(self, name: Hashable) -> None:
        """Keep it no longer."""
        self._kept.pop(name, None)

    def going(self, part: float = 0.0, what: str = "") -> bool:
        """Whether to go on, when so much of the cell is done."""
        going = self.watch(part, what)
        self.cut = self.cut or not going
        return going

    def check(self, part: float = 0.0, what: str = "") -> None:
        """Leave the cell with nothing if the user asked to stop."""
        if not self.going(part, what):
            raise Stopped

    def model(
        self, name: str, device: str = "cpu", dtype: str = "float32", weights: str | None = None
    ) -> Model:
        """The model of this name; `weights` is the hash that it must have."""
        place = ("model", name, device, dtype)
        if place not in self._kept:
            self._make_room(name)
        model: Model = self.once(place, lambda: load(name, device=device, dtype=DTYPES[dtype]))
        if weights is not None:
            check_hash(f"the model {name!r}", self.weights(name, device, dtype), weights)
        return model

    def _make_room(self, name: str) -> None:
        """Before a model is loaded, let go of the one that was loaded first."""
        self._loaded = [*(one for one in self._loaded if one != name), name]
        for old in self._loaded[:-MODELS_KEPT]:
            gone = [place for place in self._kept if _is_of_model(place, old)]
            for place in gone:
                self.drop(place)
        self._loaded = self._loaded[-MODELS_KEPT:]

    def weights(self, name: str, device: str = "cpu", dtype: str = "float32") -> str:
        """The hash of a model's weights."""
        return self.once(
            ("weights", name, device, dtype),
            lambda: hash_module(self.model(name, device, dtype).module),
        )

    def text(self, name: str, expected: str | None = None) -> str:
        """The text of this name or file; `expected` is the hash that it must have."""
        content: str = self.once(("text", name), lambda: read_text(name))
        if expected is not None:
            check_hash(f"the text {name!r}", sha256(content), expected)
        return content


def _is_of_model(place: Hashable, name: str) -> bool:
    kinds = ("model", "weights")
    return isinstance(place, tuple) and place[0] in kinds and place[1] == name


def check_hash(what: str, found: str, expected: str) -> None:
    """Refuse what changed since the cells were made."""
    if found != expected:
        raise ValueError(
            f"{what} changed since this run began: its sha256 is {found[:16]}..., expected"
            f" {expected[:16]}... Start again with another folder."
        )


def hash_module(module: nn.Module) -> str:
    """sha256 of a network: its structure, its settings, and every parameter and buffer by name.

    Parametrisations and hooks show in the structure only, not in what they compute.
    """
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    settings: Any = getattr(module, "config", None)
    told = settings.to_dict() if hasattr(settings, "to_dict") else settings
    if isinstance(told, Mapping):
        told = {name: value for name, value in told.items() if name not in VOLATILE}
    about = [type(module).__qualname__, repr(module), json.dumps(told, sort_keys=True, default=str)]
    return hash_tensors(tensors, "\n".join(about))


def hash_tensors(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """sha256 of tensors by name: name, dtype, shape and bytes, in the order of the names."""
    made = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        made.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        made.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


def hash_ids(ids: Shaped[Tensor, ...]) -> str:
    """sha256 of token ids, what a text and a tokenizer come to, or of images."""
    return hash_tensors({"ids": ids if ids.is_floating_point() else ids.to(torch.int64)})
