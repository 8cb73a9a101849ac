"""From a network to its graph."""

from __future__ import annotations

from torch import nn

from attnscope.bounds import NoBound
from attnscope.certification.chain import link_of
from attnscope.certification.containers import contained, held
from attnscope.certification.graph import Graph, Node
from attnscope.certification.reading.pristine import check_pristine
from attnscope.certification.reading.rules import Reader, full_name, readers
from attnscope.layers import Composite, FeedForward, Residual, torch_layer
from attnscope.layers.activations import Entrywise

MOST_NODES = 4096


def is_composite(network: nn.Module) -> bool:
    """Whether a network has a part that is no layer but made of layers."""
    return any(
        _reader(part) is not None
        or type(part) is Residual
        or (isinstance(part, Composite) and part.parts() is not None)
        for part in network.modules()
    )


def taken_apart(network: nn.Module) -> Graph:
    """The graph of a network that is made of layers, `nn.Sequential`, `Residual` and blocks with a
    rule, or a refusal that names the first part that is none of these.
    """
    nodes = [Node((), None)]
    _grow(nodes, 0, "", network)
    return Graph(nodes)


def _reader(module: nn.Module) -> Reader | None:
    return readers().get(full_name(type(module)))


def _apart(module: nn.Module) -> nn.Module | None:
    """What a block is made of; None for a layer."""
    reader = _reader(module)
    if reader is not None:
        return reader(module)
    return module.parts() if isinstance(module, Composite) else None


def _grow(nodes: list[Node], at: int, place: str, module: nn.Module) -> int:
    """Append what a module does to the value of node `at`; the number of the node it ends in."""
    if len(nodes) > MOST_NODES:
        raise NoBound(f"the network has more than {MOST_NODES} layers.")
    inner = None if _declares(module) else contained(module)
    if inner is not None:
        for name, part in _fused(inner):
            at = _grow(nodes, at, f"{place}.{name}".lstrip("."), part)
        return at
    if type(module) is Residual:
        end = _grow(nodes, at, place, module.branch)
        nodes.append(Node((at, end), None))
        return len(nodes) - 1
    inside = _apart(module)
    if inside is not None:
        check_pristine(module)
        return _grow(nodes, at, f"{place}.{type(module).__name__}".lstrip("."), inside)
    nodes.append(Node((at,), link_of(place or "the network", module)))
    return len(nodes) - 1


def _declares(module: nn.Module) -> bool:
    return callable(getattr(module, "over", None)) or _reader(module) is not None


def _fused(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Its parts by name; a linear layer, an activation and a linear layer become one MLP, whose
    remainder is smaller than theirs.
    """
    parts = held(network)
    fused: list[tuple[str, nn.Module]] = []
    while parts:
        made = _mlp([part for _, part in parts[:3]])
        if made is None:
            fused.append(parts.pop(0))
            continue
        fused.append((f"{parts[0][0]}-{parts[2][0]}", made))
        del parts[:3]
    return fused


def _mlp(parts: list[nn.Module]) -> FeedForward | None:
    if len(parts) < 3 or type(parts[0]) is not nn.Linear or type(parts[2]) is not nn.Linear:
        return None
    first, middle, last = parts
    act = middle if isinstance(middle, Entrywise) else torch_layer(middle)
    if not isinstance(act, Entrywise) or not isinstance(first, nn.Linear):
        return None
    assert isinstance(last, nn.Linear)
    for part in (first, middle, last):
        check_pristine(part)
    return FeedForward(first.weight, first.bias, act, last.weight.mT, last.bias)
