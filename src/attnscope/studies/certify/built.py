"""Networks of one's own: a function that builds the module, named by the user, and its weights."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from attnscope.certification.branches import logits_of
from attnscope.data.pictures import Images
from attnscope.studies.cell import sha256
from attnscope.studies.certify.foreign import Foreign, ForeignConfig
from attnscope.validation import described

DIGITS = 3
"""Of logits in the hash of a network: many enough to tell networks apart, too few to see the order
in which another machine adds.
"""
HELD = {"_parameters", "_buffers", "_modules"}
"""Attributes of a module that are its weights, hashed with them, and its parts, told in turn."""


def built(builder: str, weights: str, held: Images) -> Foreign:
    """The module that `package.module:function` returns when it is called with nothing, with the
    weights of a safetensors file; pixels in [0, 1] are what it reads.

    The function is code of the user, and runs: it is named in full and by nobody else.
    """
    network = _called(builder)
    try:
        state = safetensors.torch.load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the weights {weights!r} cannot be read ({error}): a builder goes with the path of a"
            " .safetensors file."
        ) from error
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{weights!r} does not fit what {builder} builds: {error}") from error
    network.eval()
    first = held.pixels[:1].to(next((p.dtype for p in network.parameters()), torch.float32))
    try:
        with torch.no_grad():
            logits = logits_of(network(first))
    except Exception as error:  # its forward is the user's, and may fail in any way
        raise ValueError(
            f"images of shape {tuple(held.pixels.shape[1:])} do not fit what {builder} builds:"
            f" {error} ({type(error).__name__})"
        ) from error
    channels, height, width = held.pixels.shape[1:]
    shape = (channels, height, width)
    config = ForeignConfig(shape, logits.shape[-1], builder, 0, 0, _code(builder, network, logits))
    return Foreign(network, config)


def _code(builder: str, network: nn.Module, logits: Tensor) -> str:
    """A hash of everything that is not a weight: rows of a network with another structure, other
    attributes or other code are not taken up.

    No reading of code sees all that it depends on (the environment, other files, a name imported
    from somewhere), so what it gives for an image is hashed as well, to DIGITS digits.
    """
    told = [_source(sys.modules[builder.partition(":")[0]])]
    for name, module in network.named_modules():
        kept = {key: value for key, value in vars(module).items() if key not in HELD}
        told += [name, _source(type(module)), _plain(kept | {"buffers": module._buffers})]
    given = logits.detach().double().flatten()
    size = float(given.abs().max())
    told += [f"{size:.{DIGITS}e}", *(f"{value:.{DIGITS}f}" for value in (given / size).tolist())]
    return sha256("\n".join(told))


def _plain(value: Any) -> str:
    """A setting in words; of anything else its kind, which says the same in every process."""
    if isinstance(value, str | bytes | int | float | complex | torch.dtype | torch.device | None):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[_plain(one) for one in value]}"
    if isinstance(value, set | frozenset):
        return str(sorted(_plain(one) for one in value))
    if isinstance(value, dict):
        return str(sorted((_plain(key), _plain(one)) for key, one in value.items()))
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(numbers).hexdigest()}"
    if inspect.isroutine(value):
        return _source(value)
    return type(value).__qualname__


def _source(part: Any) -> str:
    """Its code; what has no file (a notebook, a class made while running) goes by its name."""
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return str(getattr(part, "__qualname__", type(part).__qualname__))


def _called(builder: str) -> nn.Module:
    function = _found(builder)
    try:
        made = function()
    except Exception as error:  # the user's code may fail in any way, and it is theirs to mend
        raise ValueError(f"{builder} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{builder} must return a torch.nn.Module, got {described(made)}.")
    return made


def _found(builder: str) -> Callable[[], Any]:
    module, colon, name = builder.partition(":")
    if not colon or not name.isidentifier() or not module.replace(".", "_").isidentifier():
        raise ValueError(f"the builder must be package.module:function, got {builder!r}.")
    here, before = os.getcwd(), list(sys.path)
    if not any(Path(place or ".").resolve() == Path(here) for place in before):
        sys.path.insert(0, here)  # as python -m does
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"the builder {builder!r} cannot be found: {error}.") from error
    finally:
        sys.path[:] = before
    if not callable(found):
        raise ValueError(f"{builder} must be a function, got {described(found)}.")
    function: Callable[[], Any] = found
    return function
