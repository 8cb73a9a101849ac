"""Hugging Face image classifiers as `certify` needs them: pixels in [0, 1] to logits, the norms of
A, and a twin with A set to 0.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.certification.branches import logits_of
from attnscope.certification.reading import taken_apart
from attnscope.layers import ResidualAttention, SelfAttention
from attnscope.models import PREPROCESSING, processing, quiet
from attnscope.nets import Transformer, load
from attnscope.validation import parsed

NOTHING = 1e-12
"""Norms of A below this are rounding."""
DESCRIPTION = "config.json"


@final
@dataclass(frozen=True)
class ForeignConfig:
    """What tables say of a network."""

    image: tuple[int, int, int]
    outputs: int
    attention: str
    heads: int
    depth: int
    code: str = ""
    """A hash of the user's code that built it: weights alone do not say what is computed."""


@final
class Foreign(nn.Module):
    """A classifier of Hugging Face with the normalisation of its pixels in front, or one that a
    user's own function built.
    """

    def __init__(self, network: nn.Module, config: ForeignConfig) -> None:
        super().__init__()
        self.network, self.config = network, config

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.network(x))

    @property
    def attentions(self) -> list[SelfAttention | ResidualAttention]:
        """The attention layers as `certify` reads them, first to last; they share the weights. None
        of a network that it does not read, which can be smoothed all the same.
        """
        try:
            layers = [node.link.layer for node in taken_apart(self.network).nodes if node.link]
        except (NoBound, ValueError):
            return []
        return [layer for layer in layers if isinstance(layer, SelfAttention | ResidualAttention)]

    def attention_norms(self) -> list[Float[Tensor, " h"]]:
        return [layer.content_norms() for layer in self.attentions]

    def with_content_off(self) -> Foreign | None:
        """A copy whose queries are 0, so that no score depends on what tokens say; None where there
        are queries of another kind.
        """
        twin = copy.deepcopy(self)
        with torch.no_grad():
            for name, part in twin.named_parameters():
                if ".q_proj." in name:
                    part.zero_()
            for module in twin.modules():
                if isinstance(module, ResidualAttention):
                    module.without_content()
                elif isinstance(module, nn.MultiheadAttention):
                    for held in (module.in_proj_weight, module.in_proj_bias):
                        if held is not None:  # queries come first, then keys and values
                            held[: module.embed_dim].zero_()
        left = twin.attention_norms()
        return twin if all(float(norm.max()) < NOTHING for norm in left) else None


def open_network(folder: str) -> Transformer | Foreign:
    """The network in a folder: one of ours, or a Hugging Face classifier by its safetensors."""
    return _hugging_face(folder) if is_foreign(folder) else load(folder)


def certifiable(network: nn.Module) -> nn.Module:
    """What `certify` takes apart."""
    return network.network if isinstance(network, Foreign) else network


def is_foreign(folder: str) -> bool:
    try:
        told = parsed((Path(folder) / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and "model_type" in told


def _hugging_face(folder: str) -> Foreign:
    try:
        from transformers import AutoModelForImageClassification
    except ImportError as error:
        raise ValueError(
            f"{folder!r} is a Hugging Face model: pip install 'attnscope[hf]' to read it."
        ) from error
    try:
        model: Any
        with quiet():
            model, loaded = AutoModelForImageClassification.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, ValueError) as error:
        raise ValueError(f"no image classifier can be read from {folder!r}: {error}") from error
    missing = sorted(loaded["missing_keys"]) + sorted(map(str, loaded["mismatched_keys"]))
    if missing:
        raise ValueError(
            f"no image classifier can be read from {folder!r}: its file lacks {missing[0]} and"
            f" {len(missing) - 1} other weights, which would be random. Save the classifier itself."
        )
    told = model.config
    pixels = processing(folder, told.num_channels)
    config = ForeignConfig(
        (told.num_channels, *_size(told, pixels.crop)),
        told.num_labels,
        told.model_type,
        getattr(told, "num_attention_heads", 0),
        getattr(told, "num_hidden_layers", 0),
    )
    return Foreign(nn.Sequential(*pixels.layers, model).eval(), config)


def _size(config: Any, crop: Any) -> tuple[int, int]:
    """Height and width that the model reads: its own, or what its images are cut to."""
    for size in (getattr(config, "image_size", None), crop):
        if isinstance(size, dict):
            size = (size.get("height"), size.get("width"))
        pair = (size, size) if isinstance(size, int) else size
        if isinstance(pair, list | tuple) and [type(side) for side in pair] == [int, int]:
            return pair[0], pair[1]
    raise ValueError(
        f"nothing says which images a {config.model_type} model reads: neither image_size in"
        f" {DESCRIPTION} nor crop_size in {PREPROCESSING}."
    )
