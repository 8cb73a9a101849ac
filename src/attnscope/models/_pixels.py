"""Images as a vision model reads them: its size, its channels, its scale of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers import Normalise
from attnscope.models._base import Model
from attnscope.models._quiet import quiet
from attnscope.validation import described, parsed

PREPROCESSING = "preprocessor_config.json"
PROCESSING, PART = "processor_config.json", "image_processor"
"""What processors of pictures and texts together are written to, and what holds the pictures' part
there.
"""
HALF = (0.5,)
"""Mean and spread of pixels where a model names none: [0, 1] becomes [-1, 1]."""
CLOSE = 1e-4
"""How far a processor's float32 may be from what is read of it, in units of its largest value."""


class Flip(nn.Module):
    """Channels from the last to the first."""

    def forward(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        return x.flip(-3)


class Processing(NamedTuple):
    """What is done to pixels in [0, 1]."""

    layers: nn.Sequential
    """Channels are turned round where they are, then shifted and scaled."""
    crop: Any
    """What images are cut to, as the processor spells it."""


def fitted(
    model: Model, pixels: Float[Tensor, "images channels height width"]
) -> Float[Tensor, "images c h w"]:
    """Pixels in [0, 1] resized to the model's images, grey ones repeated for each channel, and
    shifted and scaled as the image processor beside the model does, in its folder or on the hub (to
    [-1, 1] where a folder has none).
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
    told = _tells(Path(model.name)) if Path(model.name).is_dir() else "/" in model.name
    return (processing(model.name, channels).layers if told else Normalise(HALF, HALF))(pixels)


def processing(place: str, channels: int) -> Processing:
    """What the image processor beside a model, in a folder or on the hub, does to pixels, its sizes
    left out.

    Read with the defaults of the processor's class, which a file need not repeat, and held against
    the processor itself on a picture of noise: one that does anything else is refused.
    """
    processor = _of_folder(place) if Path(place).is_dir() else _read(place, local=False)
    told: dict[str, Any] = processor.to_dict()
    flip = [Flip()] if told.get("do_flip_channel_order") else []
    layers = nn.Sequential(*flip, Normalise(*_normalisation(told, channels)))
    noise = np.random.default_rng(0).integers(0, 256, (channels, 16, 16), dtype=np.uint8)
    plain = {"do_resize": False, "do_center_crop": False, "do_pad": False}
    try:
        given = processor(noise, input_data_format="channels_first", return_tensors="np", **plain)
        theirs = torch.as_tensor(given["pixel_values"][0], dtype=torch.float64)
    except Exception as error:  # a processor's own code, with settings of any kind
        raise ValueError(
            f"the image processor of {place!r} ({type(processor).__name__}) fails on an image of"
            f" {channels} channels: {error} ({type(error).__name__})."
        ) from error
    ours = layers(torch.from_numpy(noise).double() / 255)
    same = ours.shape == theirs.shape
    if not same or not (ours - theirs).abs().max() <= CLOSE * ours.abs().max():
        raise ValueError(
            f"the image processor of {place!r} ({type(processor).__name__}) does more to pixels"
            " than to rescale them to [0, 1], turn their channels round, shift and scale each: what"
            " it does would be left out, and the numbers were those of another network."
        )
    return Processing(layers, told.get("crop_size"))


def _tells(folder: Path) -> bool:
    """Whether a folder holds an image processor, alone or in one that serves texts too."""
    if (folder / PREPROCESSING).is_file():
        return True
    try:
        told = parsed((folder / PROCESSING).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and PART in told


def _of_folder(folder: str) -> Any:
    file = Path(folder) / PREPROCESSING
    if not file.is_file() and _tells(Path(folder)):
        return _read(folder, local=True)
    try:
        if not isinstance(told := parsed(file.read_text("utf-8")), dict):
            raise ValueError(f"it must hold names and values, got {described(told)}")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder!r} has no {PREPROCESSING} that can be read ({error}): nothing says how"
            " pixels are normalised. Copy it from where the model is from."
        ) from error
    return _read(folder, local=True)


def _read(place: str, local: bool) -> Any:
    try:
        from transformers import AutoImageProcessor

        with quiet():
            return AutoImageProcessor.from_pretrained(
                place, local_files_only=local, trust_remote_code=False
            )
    except ImportError as error:
        raise ValueError(
            f"the image processor of {place!r} needs what is not installed:"
            f" {str(error).strip().splitlines()[0]}"
        ) from error
    except Exception as error:  # settings can break a constructor in any way
        raise ValueError(
            f"{PREPROCESSING} of {place!r} does not make an image processor: {error}"
            f" ({type(error).__name__})."
        ) from error


def _normalisation(
    told: dict[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel; only pixels that are brought to [0, 1] first."""
    factor = told.get("rescale_factor")
    plain = told.get("do_rescale") and not told.get("rescale_offset")
    if not plain or not isinstance(factor, float) or abs(255 * factor - 1) > 1e-6:
        raise ValueError(
            f"{PREPROCESSING} must bring pixels to [0, 1], with do_rescale and a rescale_factor of"
            f" 1/255, got do_rescale {told.get('do_rescale')!r}, rescale_factor {factor!r},"
            f" rescale_offset {told.get('rescale_offset', False)!r}."
        )
    if not told.get("do_normalize"):
        return (0.0,) * channels, (1.0,) * channels
    mean, deviation = _numbers(told, "image_mean"), _numbers(told, "image_std")
    for values in (mean, deviation):
        if len(values) != channels:
            raise ValueError(
                f"{PREPROCESSING} normalises {len(values)} channels, the model reads {channels}."
            )
    if told.get("include_top"):  # EfficientNet divides by the deviation twice
        deviation = tuple(one * one for one in deviation)
    return mean, deviation


def _numbers(told: dict[str, Any], name: str) -> tuple[float, ...]:
    values = told.get(name)
    if not isinstance(values, list | tuple) or not all(type(one) in (int, float) for one in values):
        raise ValueError(
            f"{name} must be numbers in {PREPROCESSING}, one for each channel, got"
            f" {described(values)}."
        )
    return tuple(values)
