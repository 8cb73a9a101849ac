r"""The local Lipschitz constant of each layer, head and length, one row per sequence.

Sequence s of length n is tokens [s n, (s+1) n) of the text; all sequences of a cell run as one
stack.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import Bounds, smoothness, through_norm
from attnscope.data.texts import windows
from attnscope.measures import Particles
from attnscope.models import Model, Part, part_jacobian
from attnscope.operators import LinearOperator, jacobian, spectral_norm
from attnscope.studies.measure.rows import BoundRow, Constants, Place, Row
from attnscope.studies.workbench import Workbench, check_hash, hash_ids


def text_ids(workbench: Workbench, model: Model, text: str) -> Int[Tensor, " total"]:
    """The ids of a text as this model reads them, tokenised once."""
    return workbench.once(("ids", model.name, text), lambda: model.encode(workbench.text(text)))


def needs_double(model: Model, part: str) -> bool:
    """Whether a lower bound is finished by a float64 copy of the whole model."""
    known = all(model.rebuilt(layer) for layer in range(model.layers))
    return (part in ("mlp", "block") or not known) and model.dtype != torch.float64


def constants(cell: Constants, workbench: Workbench) -> list[Row]:
    """Measure layer by layer: the whole layer first, then its heads."""
    model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
    double = (
        workbench.model(cell.model, cell.device, "float64")
        if needs_double(model, cell.part)
        else None
    )
    ids = _sequences(cell, model, workbench)
    part, rows, done = cast(Part, cell.part), list[Row](), 0
    for layer, point, attended in model.points(ids, cell.layers, part):
        if double is not None and not double.rebuilt(layer):
            double.tokens(ids[:1], layer, part)  # an unknown network learns its mask by running
        attention = model.attention(layer) if cell.heads else None
        for head in (None, *cell.heads):
            where = f"n = {cell.n}, layer {layer}" + ("" if head is None else f" head {head}")
            if not workbench.going(done / cell.calls, where):
                return rows
            alone = None if head is None or attention is None else attention.heads.select(head)
            op, value = _problem(model, double, cell, layer, alone, point)
            rows += _measured(cell, op, value, layer, head, attended)
            done += 1
    return rows


def theorems(cell: Place, workbench: Workbench) -> list[BoundRow]:
    """Every proved bound on the measured part of each layer, at the first sequence."""
    model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
    ids = _sequences(cell, model, workbench)
    part, rows = cast(Part, cell.part), list[BoundRow]()
    for number, (layer, x, read) in enumerate(model.points(ids, cell.layers)):
        if not workbench.going(number / len(cell.layers), f"bounds, layer {layer}"):
            return rows
        found = smoothness(model.attention(layer), Particles(read[0]))
        if part != "attention":
            found = _with_norm(model, layer, part, x[0], found)
        rows += [BoundRow(layer, **vars(bound)) for bound in found]
    return rows


def _with_norm(model: Model, layer: int, part: Part, x: Tensor, found: Bounds) -> Bounds:
    """Bounds on the attention turned into bounds on a part with residual and norm."""
    norm, residual = model.norm(layer), part == "residual"
    if model.pre_norm:
        return through_norm(found, norm, x, norm_first=True, residual=residual)
    moved = x + model.attention(layer)(x, Particles(x))
    return through_norm(found, None if residual else norm, moved, norm_first=False, residual=True)


def _sequences(cell: Place, model: Model, workbench: Workbench) -> Int[Tensor, "samples n"]:
    ids = text_ids(workbench, model, cell.text)
    found = workbench.once(("tokens", model.name, cell.text), lambda: hash_ids(ids))
    check_hash(f"the tokens of {cell.text!r}", found, cell.tokens)
    return windows(ids, cell.n, cell.first + cell.samples)[cell.first :]


def _problem(
    model: Model,
    double: Model | None,
    cell: Constants,
    layer: int,
    head: Heads | None,
    x: Tensor,
) -> tuple[LinearOperator, Tensor | None]:
    """The Jacobian to measure, and the value of the map when the released estimator needs it."""
    part = cast(Part, cell.part)
    if head is not None:
        attention = Softmax(head, causal=model.causal)
        mu = Particles(x)
        return jacobian(attention, mu), attention(x, mu) if cell.released else None
    with torch.no_grad():
        value = model.function(layer, part)(x) if cell.released else None
    return part_jacobian(model, layer, part, x, double), value


def _measured(
    cell: Constants,
    op: LinearOperator,
    value: Tensor | None,
    layer: int,
    head: int | None,
    attended: Tensor,
) -> list[Row]:
    share = cell.failure_probability / cell.calls if cell.certified else None
    found = spectral_norm(op, tol=cell.tol, failure_probability=share, seed=cell.seed)
    norms = torch.linalg.vector_norm(attended, dim=-1, dtype=torch.float64)
    released = [None] * cell.samples
    if value is not None:
        released = (
            torch.linalg.vector_norm(op.rmv(value).flatten(1), dim=1, dtype=torch.float64)
            .sqrt()
            .tolist()
        )
    columns = [
        torch.as_tensor(part).tolist()
        for part in (found.lower, found.residual, found.pairs, found.converged)
    ]
    upper = [None] * cell.samples if found.upper is None else torch.as_tensor(found.upper).tolist()
    return [
        Row(
            model=cell.model,
            layer=layer,
            head=head,
            part=cell.part,
            n=cell.n,
            sequence=cell.first + s,
            start=(cell.first + s) * cell.n,
            radius=float(norms[s].square().mean().sqrt()),
            largest_norm=float(norms[s].max()),
            lower=columns[0][s],
            upper=None if upper[s] is None or upper[s] != upper[s] else upper[s],
            residual=columns[1][s],
            pairs=columns[2][s],
            converged=columns[3][s],
            released_estimator=released[s],
        )
        for s in range(cell.samples)
    ]
