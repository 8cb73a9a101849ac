"""The network that a certificate speaks of: a copy in float64 whose weights are what its modules
compute, followed tensor by tensor to see that it is its chain of layers and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from attnscope.certification.chain import Link
from attnscope.certification.containers import NotTheChain
from attnscope.certification.reading.pristine import check_own, check_pristine

HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")

HARMLESS = {
    "shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout", "grad_fn", "is_leaf",
    "size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point", "is_complex",
    "stride", "is_contiguous", "element_size", "type", "get_device", "__hash__", "__repr__",
    "_version",
}  # fmt: skip
"""What a forward may ask a tensor between two layers: nothing that depends on its entries."""


def exact(network: nn.Module) -> nn.Module:
    """A copy in float64 with every reparametrised weight replaced by what its module would compute
    with it, and nothing in it that writes over its input.

    A hook can change anything that passes through it: a module with one is refused. Weights under
    `weight_norm`, `spectral_norm` (old and new) and parametrisations are computed anew, since what
    `module.weight` shows between two calls may be stale.
    """
    for name in GLOBAL_HOOKS:
        if getattr(torch_module, name, None):
            raise ValueError(
                "there is no certificate while hooks for all modules are registered with torch"
                f" ({name.strip('_')}): they may change what any layer computes. Remove them first."
            )
    for place, module in nn.Module.named_modules(network):
        _check_kind(_where(place, module), module)
        check_own(_where(place, module), module)
    copied = copy.deepcopy(network, _detached(network)).to(torch.float64).requires_grad_(False)
    _check_copy(network, copied)
    for place, module in copied.named_modules():
        _materialise(module)
        _refuse_hooks(_where(place, module), module)
        check_pristine(module)
        if getattr(module, "inplace", False) is True:
            module.inplace = False
    return copied.requires_grad_(False)


def _where(place: str, module: nn.Module) -> str:
    return f"layer {place or 'the network'} ({type(module).__name__})"


def _check_kind(where: str, module: nn.Module) -> None:
    """Refuse what a copy in float64 would not hold."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"there is no certificate, because {where} was scripted or traced, and shows no layers."
            " Certify the nn.Module that it was made of."
        )
    for name, value in [
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
    ]:
        if value.is_complex():
            raise ValueError(
                f"there is no certificate, because {name} of {where} holds complex numbers, and"
                " networks are certified in float64. Hold their real and imaginary parts as two"
                " tensors."
            )


def _check_copy(network: nn.Module, copied: nn.Module) -> None:
    """A class may say itself how it is copied: the copy must hold the same modules, numbers and
    weights.
    """
    one, other = vars(network), vars(copied)
    same = type(network) is type(copied) and list(one["_modules"]) == list(other["_modules"])
    for held in ("_parameters", "_buffers"):
        same = same and one[held].keys() == other[held].keys()
        same = same and all(_equal(one[held][name], other[held][name]) for name in one[held])
    plain = [name for name, value in one.items() if type(value) in (bool, int, float, str)]
    if not same or any(repr(one[name]) != repr(other.get(name)) for name in plain):
        raise ValueError(
            f"there is no certificate, because a copy of {type(network).__name__} by copy.deepcopy"
            " is another network. Let it be copied as torch does."
        )
    for name, part in one["_modules"].items():
        if part is not None:
            _check_copy(part, other["_modules"][name])


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one.to(other), other)


def _detached(network: nn.Module) -> dict[int, Any]:
    """A memo for deepcopy with weights that are results of a computation, which torch does not
    copy.
    """
    return {
        id(value): value.detach().clone()
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }


def _materialise(module: nn.Module) -> None:
    for hook in list(module._forward_pre_hooks.values()):
        if type(hook) is WeightNorm:
            remove_weight_norm(module, hook.name)
        elif type(hook) is SpectralNorm:
            remove_spectral_norm(module, hook.name)
    if parametrize.is_parametrized(module):
        _as_before(module)


def _as_before(module: nn.Module) -> None:
    """The module of its own class again, with the weights that its parametrisations gave.

    torch's `remove_parametrizations` would change the class that this copy shares with the network
    it was copied from.
    """
    names = list(module.parametrizations)  # type: ignore[arg-type]
    weights = {name: getattr(module, name).detach().clone() for name in names}
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight))


def _refuse_hooks(where: str, module: nn.Module) -> None:
    for name, words in HOOKS.items():
        if getattr(module, name, None):
            raise ValueError(
                f"there is no certificate, because {where} has {words}, which may change what the"
                " layer computes. Remove it first, or write what it does as a layer."
            )


def follow(network: nn.Module, links: Sequence[Link], x: Tensor) -> Tensor:
    """The output of the network, or `NotTheChain`: its forward must hand the input to the first
    layer, the very output of each layer to the next and that of the last one back, and must look at
    no entry of a tensor on the way.
    """
    start = (x, x._version)
    with torch.no_grad(), _watched(links) as watch, watch:
        made: Tensor = network(x)
    calls = watch.calls
    ran = [module for module, _, _ in calls]
    if len(ran) != len(links) or any(
        module is not link.module for module, link in zip(ran, links, strict=True)
    ):
        raise NotTheChain("it does not call each of its layers once, in their order")
    current = start
    for link, (_, entered, left) in zip(links, calls, strict=True):
        if not _same(entered, current):
            raise NotTheChain(f"what enters {link.place} is not what the part before it returned")
        current = left
    if not _same((made, made._version), current):
        raise NotTheChain("what it returns is not what its last layer returned")
    return made


State = tuple[Tensor, int]
"""A tensor and how often it had been written to."""


def _same(one: State, other: State) -> bool:
    return one[0] is other[0] and one[1] == other[1]


@final
class _Watch(TorchFunctionMode):
    """Sees every use of a tensor; between two layers only those that ask no entry are let pass."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[nn.Module, State, State]] = []
        self.within: list[tuple[nn.Module, State]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":  # the getter of a property of tensors
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        if not self.within and name not in HARMLESS:
            raise NotTheChain(f"it calls {name} between two layers")
        return func(*args, **(kwargs or {}))


@contextmanager
def _watched(links: Sequence[Link]) -> Iterator[_Watch]:
    """Hooks on the layers that write down what enters and leaves them."""
    watch = _Watch()

    def entering(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if len(given) != 1 or named or not isinstance(given[0], Tensor):
            raise NotTheChain(f"it calls a {type(module).__name__} with more than one tensor")
        watch.within.append((module, (given[0], given[0]._version)))

    def leaving(module: nn.Module, _: tuple[Any, ...], made: Any) -> None:
        began, entered = watch.within.pop()
        assert began is module
        if not isinstance(made, Tensor):
            raise NotTheChain(f"a {type(module).__name__} returns no tensor")
        if not watch.within:
            watch.calls.append((module, entered, (made, made._version)))

    handles = []
    for module in {id(link.module): link.module for link in links}.values():
        handles.append(module.register_forward_pre_hook(entering, with_kwargs=True))
        handles.append(module.register_forward_hook(leaving))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
