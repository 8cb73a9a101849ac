"""A rule speaks of a class as its library wrote it: modules of a class that was changed since are
refused, and so are modules that carry something of their own in place of what their class does.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STANDARD = sysconfig.get_paths()["stdlib"]
LIBRARIES = ("torch", "transformers", "attnscope")
FUNCTIONS = {
    (owner, name): getattr(owner, name)
    for owner, names in (
        (F, ("linear", "conv2d", "gelu", "relu", "silu", "layer_norm", "rms_norm", "dropout",
             "softmax", "scaled_dot_product_attention", "multi_head_attention_forward",
             "max_pool2d", "avg_pool2d", "batch_norm", "leaky_relu")),
        (torch, ("tanh", "sigmoid", "matmul", "softmax", "cat", "relu", "layer_norm", "bmm",
                 "baddbmm", "_transformer_encoder_layer_fwd", "_native_multi_head_attention")),
    )
    for name in names
}  # fmt: skip
"""What torch's own forwards call, as it was when attnscope was imported."""


def check_own(where: str, module: nn.Module) -> None:
    """Refuse a module that carries, beside its class, what a call, a copy or a look at its weights
    would find in place of what the class does.
    """
    own, kind = vars(module), type(module)
    held = {*own["_parameters"], *own["_buffers"], *own["_modules"]}
    for name, value in own.items():
        special = name.startswith("__") and name.endswith("__")
        method = callable(inspect.getattr_static(kind, name, None))
        compiled = name == "_compiled_call_impl" and value is not None
        if special or method or compiled or name in held:
            raise ValueError(
                f"there is no certificate, because the {name} of {where} was replaced"
                " by hand or compiled. Certify the network without that, or write a class of your"
                " own with this forward and its bounds."
            )


def check_pristine(module: nn.Module) -> None:
    """Refuse a module unless everything that its call runs is of the library of its class, and its
    weights are plain tensors.
    """
    kind = type(module)
    if kind.__module__.split(".")[0] not in LIBRARIES:
        return  # a layer of one's own, whose bounds are taken at their word
    check_own(f"a {kind.__name__}", module)
    for where, function in _functions(kind):
        if not from_a_library(function):
            raise ValueError(_changed(where))
    for (owner, name), known in FUNCTIONS.items():
        if getattr(owner, name) is not known:
            raise ValueError(_changed(f"{owner.__name__}.{name}"))
    for name, part in [*module.named_parameters(), *module.named_buffers()]:
        if type(part) not in (nn.Parameter, Tensor):
            raise ValueError(
                f"there is no certificate, because {name} of a {kind.__name__} is a"
                f" {type(part).__name__}, which may compute anything. Use plain weights."
            )


def _functions(kind: type) -> Iterator[tuple[str, object]]:
    """The methods of a class, and the functions that stand beside it in its file."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            yield f"{kind.__name__}.{name}", value
    for name, value in vars(sys.modules[kind.__module__]).items():
        yield f"{kind.__module__}.{name}", value


def from_a_library(function: object) -> bool:
    """Whether a function was written in one of the libraries; what is no function of Python is not
    looked at.
    """
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if isinstance(function, property):
        function = function.fget
    if not isinstance(function, FunctionType):
        return True
    path = inspect.unwrap(function).__code__.co_filename
    standard = path.startswith(STANDARD) and "site-packages" not in path
    return standard or path.startswith(("<frozen ", *_homes()))


@functools.cache
def _home(library: str) -> str:
    return str(Path(str(sys.modules[library].__file__)).parent)


def _homes() -> tuple[str, ...]:
    return tuple(_home(name) for name in LIBRARIES if name in sys.modules)


def _changed(what: str) -> str:
    return (
        f"there is no certificate, because {what} is not what its library wrote: it was replaced."
        " Restore it, or write what it does as a layer of your own."
    )
