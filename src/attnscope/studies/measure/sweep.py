r"""The local Lipschitz constant of each layer, head and length, one row per sequence.

Sequence s of length n is tokens [s n, (s+1) n) of the text; all sequences of a cell run as one
stack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, cast

import torch
from jaxtyping import Shaped
from torch import Tensor

from attnscope.bounds import Bounds, smoothness, through_norm
from attnscope.measures import Particles
from attnscope.models import Model, Part, heads_jacobian, heads_values, part_jacobian
from attnscope.operators import LinearOperator, Near, SpectralNorm, spectral_norm
from attnscope.studies.measure.directions import DirectionRow, direction_rows
from attnscope.studies.measure.inputs import cut, text_ids
from attnscope.studies.measure.ladder import Memory
from attnscope.studies.measure.rows import BoundRow, Constants, Place, Row
from attnscope.studies.workbench import Workbench, check_hash, hash_ids


def needs_double(workbench: Workbench, model: Model, part: str) -> bool:
    """Whether a lower bound is finished by the float64 copy of the whole model."""

    def needed() -> bool:
        known = all(model.rebuilt(layer) for layer in range(model.layers))
        return (part in ("mlp", "block") or not known) and model.dtype != torch.float64

    wanted: bool = workbench.once(
        ("needs double", model.name, str(model.device), str(model.dtype), part), needed
    )
    return wanted


def constants(cell: Constants, workbench: Workbench) -> list[Row | DirectionRow]:
    """Measure length by length and layer by layer: the whole layer first, then its heads."""
    model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
    double = model.doubled() if needs_double(workbench, model, cell.part) else None
    memory, rows = Memory(cell.first), list[Row | DirectionRow]()
    for number, n in enumerate(cell.rungs):
        last = n == cell.n
        rung = dataclasses.replace(cell, n=n, before=(), directions=cell.directions and last)
        rows += _rung(rung, model, double, workbench, memory, number / len(cell.rungs))
        if workbench.cut:
            break
    return rows


def _rung(
    cell: Constants,
    model: Model,
    double: Model | None,
    workbench: Workbench,
    memory: Memory,
    begun: float,
) -> list[Row | DirectionRow]:
    """One length, when this part of its cell is done; what there is when it was asked to stop."""
    ids = _sequences(cell, model, workbench)
    part, rows, done = cast(Part, cell.part), list[Row | DirectionRow](), 0
    for layer, point, attended in model.points(ids, cell.layers, part):
        if double is not None and not double.rebuilt(layer):
            double.tokens(ids[:1], layer, part)  # an unknown network learns its mask by running
        for heads in ((), cell.heads) if cell.heads else ((),):
            where = f"n = {cell.n}, layer {layer}" + (", heads" if heads else "")
            if not workbench.going(begun + (1 - begun) * done / cell.calls, where):
                return rows
            op, value = _problem(model, double, cell, layer, heads, point)
            found = _solved(cell, op, memory.near((layer, heads), cell.n))
            memory.keep((layer, heads), cell.n, found.around)
            rows += _measured(cell, op, found, value, layer, heads, attended)
            if cell.directions and not heads:
                rows += direction_rows(cell, model, layer, ids[0], found)
            done += 1
    return rows


def theorems(cell: Place, workbench: Workbench) -> list[BoundRow]:
    """Every proved bound on the measured part of each layer, at the first sequence."""
    model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
    ids = _sequences(cell, model, workbench)
    part, rows = cast(Part, cell.part), list[BoundRow]()
    where: dict[str, Any] = {name: getattr(cell, name) for name in ("model", "part", "n", "text")}
    for number, (layer, x, read) in enumerate(model.points(ids, cell.layers)):
        if not workbench.going(number / len(cell.layers), f"bounds, layer {layer}"):
            return rows
        if not model.rebuilt(layer, read):
            try:
                found = model.bounds(layer, ids[0], part)
            except ValueError:  # too large, or a norm of another form: a remark of the study
                continue
        else:
            found = smoothness(model.from_weights(layer), Particles(read[0]))
            if part != "attention":
                found = _with_norm(model, layer, part, x[0], found)
        rows += [BoundRow(layer, **vars(bound), **where) for bound in found]
    return rows


def _with_norm(model: Model, layer: int, part: Part, x: Tensor, found: Bounds) -> Bounds:
    """Bounds on the attention turned into bounds on a part with residual and norm."""
    norm, residual = model.norm(layer), part == "residual"
    if model.pre_norm:
        return through_norm(found, norm, x, norm_first=True, residual=residual)
    moved = x + model.attention(layer)(x, Particles(x))
    return through_norm(found, None if residual else norm, moved, norm_first=False, residual=True)


def supply(cell: Place, n: int) -> Hashable:
    """The name under which the ids or images of this length come with a cell."""
    return ("sequences", cell.tokens, n, cell.first, cell.samples, cell.frame, cell.members)


def _sequences(cell: Place, model: Model, workbench: Workbench) -> Shaped[Tensor, "samples ..."]:
    """The ids or images of a cell: those that came with it, or those of its text."""
    came = workbench.found(supply(cell, cell.n))
    if came is not None:
        return came
    ids = text_ids(workbench, model, cell.text)
    found = workbench.once(("tokens", model.name, cell.text), lambda: hash_ids(ids))
    check_hash(f"the tokens of {cell.text!r}", found, cell.tokens)
    return cut(ids, cell.n, cell.first, cell.samples, cell.frame, cell.members)


def _problem(
    model: Model,
    double: Model | None,
    cell: Constants,
    layer: int,
    heads: tuple[int, ...],
    x: Tensor,
) -> tuple[LinearOperator, Tensor | None]:
    """The Jacobian of the layer or of these heads, a stack that begins with them, and the value of
    the map when the released estimator needs it.
    """
    part = cast(Part, cell.part)
    if heads:
        value = heads_values(model, layer, x, heads) if cell.released else None
        return heads_jacobian(model, layer, x, heads, double), value
    with torch.no_grad():
        value = model.function(layer, part)(x) if cell.released else None
    return part_jacobian(model, layer, part, x, double), value


def _solved(cell: Constants, op: LinearOperator, near: Near | None) -> SpectralNorm:
    """The constants of one stack."""
    share = cell.failure_probability / cell.calls if cell.certified else None
    return spectral_norm(op, tol=cell.tol, failure_probability=share, seed=cell.seed, near=near)


def _measured(
    cell: Constants,
    op: LinearOperator,
    found: SpectralNorm,
    value: Tensor | None,
    layer: int,
    heads: tuple[int, ...],
    attended: Tensor,
) -> list[Row]:
    """A row for each problem of a stack: of the sequences, or of the heads and the sequences."""
    problems = (max(1, len(heads)), cell.samples)
    norms = torch.linalg.vector_norm(attended, dim=-1, dtype=torch.float64)
    released = None
    if value is not None:
        pulled = op.rmv(value).flatten(len(op.stack))
        released = torch.linalg.vector_norm(pulled, dim=-1, dtype=torch.float64).sqrt()

    def column(values: Any) -> Any:
        return torch.as_tensor(values).reshape(problems).tolist()

    numbers = cell.members or range(cell.first, cell.first + cell.samples)
    none = [[None] * cell.samples] * problems[0]
    upper = none if found.upper is None else column(found.upper)
    estimator = none if released is None else column(released)
    lower, residual, pairs, converged = (
        column(part) for part in (found.lower, found.residual, found.pairs, found.converged)
    )
    return [
        Row(
            model=cell.model,
            layer=layer,
            head=head,
            part=cell.part,
            n=cell.n,
            sequence=numbers[s],
            start=0 if cell.members else numbers[s] * (cell.n - sum(map(len, cell.frame))),
            radius=float(norms[s].square().mean().sqrt()),
            largest_norm=float(norms[s].max()),
            lower=lower[h][s],
            upper=None if upper[h][s] is None or upper[h][s] != upper[h][s] else upper[h][s],
            residual=residual[h][s],
            pairs=pairs[h][s],
            converged=converged[h][s],
            released_estimator=estimator[h][s],
            text=cell.text,
        )
        for h, head in enumerate(heads or (None,))
        for s in range(cell.samples)
    ]
