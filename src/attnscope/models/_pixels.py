"""Images as a vision model reads them: its size, its channels, its scale of pixels."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.models._base import Model
from attnscope.validation import parsed

HALF = (0.5,)
"""Mean and spread of pixels where a model names none: [0, 1] becomes [-1, 1]."""


def fitted(
    model: Model, pixels: Float[Tensor, "images channels height width"]
) -> Float[Tensor, "images c h w"]:
    """Pixels in [0, 1] resized to the model's images, grey ones repeated for each channel, and
    shifted and scaled as the model's `preprocessor_config.json` says (to [-1, 1] without one).
    """
    example = model.sample(1)
    if not model.sees_images or example is None:
        raise ValueError(
            f"{model.name} reads texts, not images: leave the images out and pass a text."
        )
    channels, *size = example.shape[1:]
    if pixels.shape[1] not in (1, channels):
        raise ValueError(
            f"{model.name} reads images of {channels} channels, got {pixels.shape[1]}: convert them"
            " first."
        )
    pixels = pixels.expand(-1, channels, -1, -1)
    if list(pixels.shape[2:]) != size:
        pixels = torch.nn.functional.interpolate(
            pixels, tuple(size), mode="bilinear", antialias=True, align_corners=False
        )
    mean, spread = _scale(model.name)
    shape = (1, -1, 1, 1)
    shifted = pixels - torch.tensor(mean, dtype=pixels.dtype).reshape(shape)
    return shifted / torch.tensor(spread, dtype=pixels.dtype).reshape(shape)


def _scale(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread that come with a model in a folder."""
    file = Path(name) / "preprocessor_config.json"
    if not file.is_file():
        return HALF, HALF
    try:
        told = parsed(file.read_text("utf-8"))
        mean, spread = (told.get(key, HALF) for key in ("image_mean", "image_std"))
        return tuple(map(float, mean)), tuple(map(float, spread))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(file)!r} does not say how pixels are shifted and scaled ({error}). Copy it from"
            " where the model is from."
        ) from error
