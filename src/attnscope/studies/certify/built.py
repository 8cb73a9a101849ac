"""Networks of one's own: a function that builds the module, named by the user, and its weights."""

from __future__ import annotations

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
from torch import nn

from attnscope.certification.branches import logits_of
from attnscope.data.pictures import Images
from attnscope.studies.cell import sha256
from attnscope.studies.certify.foreign import Foreign, ForeignConfig
from attnscope.validation import described


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
    config = ForeignConfig(shape, logits.shape[-1], builder, 0, 0, _code(builder, network))
    return Foreign(network, config)


def _code(builder: str, network: nn.Module) -> str:
    """A hash of the builder's file, the structure of the module and the code of its classes, so
    that rows of other code are not taken up.
    """
    home = sys.modules[builder.partition(":")[0]]
    told = [repr(network)]
    parts: list[Any] = [home, *{type(module) for module in network.modules()}]
    for part in parts:
        try:
            told.append(inspect.getsource(part))
        except (OSError, TypeError):  # no file: a notebook, or a class made while running
            told.append(repr(part))
    return sha256("\n".join(sorted(told)))


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
