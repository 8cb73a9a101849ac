"""What is attacked: an attention, the tokens whose mass is split, and the ball in which inputs are
searched.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.studies.attack.rows import Source
from attnscope.studies.matrices import attention_of_matrices, load_array, seeded
from attnscope.studies.measure.inputs import text_ids
from attnscope.studies.workbench import Workbench, hash_tensors
from attnscope.validation import check_positive


@dataclass(frozen=True, eq=False)
class Target:
    """An attention and its tokens; `radius` is that of the ball."""

    name: str
    attention: Attention
    mu: Particles
    radius: float


def target_of(source: Source, workbench: Workbench) -> Target:
    """Build what a source names, once per process."""
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(Source)}
    plain = Source(**fields)

    def build() -> Target:
        return _of_matrices(plain) if plain.model is None else _of_model(plain, workbench)

    made: Target = workbench.once(("attack target", plain), build)
    return made


def hash_target(target: Target) -> str:
    """sha256 of the attention, matrices and options, and of the tokens."""
    held: dict[str, Any] = {"x": target.mu.x, "masses": target.mu.weights}
    held |= {field.name: getattr(target.attention, field.name) for field in _own(target.attention)}
    heads = target.attention.heads
    held |= {f"heads.{field.name}": getattr(heads, field.name) for field in _own(heads)}
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    plain = {name: repr(value) for name, value in held.items() if name not in tensors}
    return hash_tensors(tensors, f"{target.attention.name} {sorted(plain.items())}")


def _own(made: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(made) if field.name != "heads"]


def _of_model(source: Source, workbench: Workbench) -> Target:
    assert source.model is not None
    model = workbench.model(source.model, dtype="float64")
    ids = text_ids(workbench, model, source.text)
    longest = min(len(ids), model.positions)
    if not 2 <= source.tokens <= longest:
        raise ValueError(
            f"the number of tokens must be from 2 to {longest} for {model.name} on this text, got"
            f" {source.tokens}."
        )
    attention: Attention = model.attention(source.layer)
    name = f"{Path(model.name).name}, layer {source.layer}"
    if source.head is not None:
        if not 0 <= source.head < attention.heads.count:
            raise ValueError(
                f"the head must be from 0 to {attention.heads.count - 1}, got {source.head}."
            )
        attention = dataclasses.replace(attention, heads=attention.heads.select(source.head))
        name += f", head {source.head}"
    x = model.tokens(ids[: source.tokens], source.layer)
    if not model.rebuilt(source.layer, x):
        raise ValueError(
            f"layer {source.layer} of {model.name} is another map on {source.tokens} tokens than"
            " its heads spell: it has a window, or something clips. Use fewer tokens."
        )
    largest = float(torch.linalg.vector_norm(x, dim=-1).max())
    return Target(name, attention, Particles(x), _radius(source, largest))


def _of_matrices(source: Source) -> Target:
    generator = seeded(source.seed)
    dim, radius = source.dim, _radius(source, 1.0)
    made = attention_of_matrices(
        source.attention,
        source.heads,
        source.scores,
        source.values,
        dim,
        source.causal,
        generator,
    )
    if source.cloud is None:
        if source.tokens < 1:
            raise ValueError(f"the number of tokens must be at least 1, got {source.tokens}.")
        x = torch.randn(source.tokens, dim, generator=generator, dtype=torch.float64)
        depth = torch.rand(source.tokens, 1, generator=generator, dtype=torch.float64)
        x = radius * depth ** (1 / dim) * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    else:
        x = torch.from_numpy(load_array(source.cloud))
        if x.ndim != 2 or x.shape[1] != dim:
            raise ValueError(
                f"{source.cloud} must hold tokens of shape (n, {dim}), as the matrices have"
                f" dimension {dim}, got {tuple(x.shape)}."
            )
    return Target(f"{made.name} attention", made, Particles(x), radius)


def _radius(source: Source, default: float) -> float:
    if source.radius is None:
        return default
    check_positive("radius", source.radius)
    return source.radius
