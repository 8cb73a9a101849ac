"""The study of a round trip: tokens go through a stack of invertible attention layers and are found
again.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.nets.invertible import Invertible
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREY, RED, heading, new_figure
from attnscope.studies.matrices import seeded
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import DTYPES, Workbench, check_hash, hash_tensors
from attnscope.validation import check_positive

LEAST = 1e-18
"""Zero, on a logarithmic axis."""
MOST_NUMBERS = 10**8
"""Of the weights, or of the tokens."""


class Trip(NamedTuple):
    """What inverting with this many iterations per layer leaves: Frobenius norms over all
    tokens.
    """

    iterations: int
    error: float
    bound: float
    """Proved in exact arithmetic."""
    rounding: float
    """An estimate of what floating point adds."""
    converged: bool


class Rung(NamedTuple):
    """One layer: its proved Lipschitz constant, and the ball of its inputs (None: anywhere)."""

    layer: int
    attention: str
    constant: float
    ball: float | None


class Tokens(NamedTuple):
    """Before the stack, after it, and found again; how far the stack moved them, in Frobenius
    norm.
    """

    moved: float
    x: np.ndarray
    y: np.ndarray
    found: np.ndarray


class Part(NamedTuple):
    """One array of the network's file."""

    name: str
    array: np.ndarray


@dataclass(frozen=True)
class InvertConfig:
    """A random stack, or one that `Invertible.save` wrote.

    Args:
        radius: Of the ball that tokens are drawn from; 1 if left out, or that of the stack where
            it is smaller.
        file: The stack; the other settings of a stack then mean nothing.
        most: Iterations per layer that are tried at most.
    """

    attention: str = "softmax"
    layers: int = 24
    tokens: int = 16
    dim: int = 8
    heads: int = 2
    radius: float | None = None
    contraction: float = 0.9
    causal: bool = False
    squash: bool = False
    dtype: str = "float64"
    file: str | None = None
    most: int = 1000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class InvertCell(InvertConfig, Cell):
    """One round trip; `weights` is the hash of the stack."""

    weights: str


class Invert(Study):
    name = "invert"
    Config = InvertConfig
    fast = InvertConfig(layers=2, tokens=5, dim=4)
    tables: ClassVar[dict[str, type]] = {
        "results": Trip,
        "layers": Rung,
        "tokens": Tokens,
        "network": Part,
    }

    def cells(self, config: InvertConfig, workbench: Workbench) -> Iterable[InvertCell]:
        network, x = _start(config)
        yield InvertCell(**asdict(config), weights=_hash(network, x))

    @torch.no_grad()
    def run(self, cell: InvertCell, workbench: Workbench) -> list[Any]:
        network, x = _start(cell)
        check_hash("the stack", _hash(network, x), cell.weights)
        y, trips, found = network(x), list[Trip](), None
        for count in range(1, cell.most + 1):
            what = f"{count} iterations per layer"
            if not workbench.going(_part(trips, x.dtype), what) and found is not None:
                break
            found = network.inverse(y, most=count)
            error = float(torch.linalg.vector_norm((found.x - x).to(torch.float64)))
            bound, rounding = float(found.error_bound), float(found.rounding)
            trips.append(Trip(count, error, bound, rounding, bool(found.converged)))
            if found.converged:
                break
        assert found is not None
        rungs = [
            Rung(number, step.attention.name, float(step.constant), _float(step.ball))
            for number, step in enumerate(network.steps())
        ]
        moved = float(torch.linalg.vector_norm((y - x).to(torch.float64)))
        tokens = Tokens(moved, *(part.numpy() for part in (x, y, found.x)))
        return [*trips, *rungs, tokens, *_parts(network)]

    def figures(self, table: Table) -> dict[str, Any]:
        """The error against the number of iterations, next to its proved bound."""
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(6, 4.4)
        ax = figure.add_subplot()
        counts = [trip.iterations for trip in table]
        for name, form, color, label in (
            ("bound", "s--", RED, "proved bound (exact arithmetic)"),
            ("error", "o-", BLUE, "error"),
            ("rounding", ":", GREY, "rounding (estimate)"),
        ):
            heights = [max(getattr(trip, name), LEAST) for trip in table]
            ax.plot(counts, heights, form, color=color, markersize=4, label=label)
        ax.set(yscale="log", xlabel="iterations per layer", ylabel="distance to the input")
        ax.set_title(_title(table))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
        return {"invert": figure}

    def summary(self, table: Table) -> list[Sheet]:
        trips, rungs = table.rows, table["layers"]
        places = {*range(0, len(trips), max(1, len(trips) // 8)), len(trips) - 1}
        lines: list[tuple[str, ...]] = [
            (str(t.iterations), f"{t.error:.3e}", f"{t.bound:.3e}", f"{t.rounding:.1e}")
            for t in (trips[place] for place in sorted(places))
        ]
        first, final = rungs[0].ball, rungs[-1].ball
        where = (
            "inputs anywhere"
            if first is None or final is None
            else f"inputs in balls of radius {first:.3g} to {final:.3g}"
        )
        state = "converged" if trips[-1].converged else "not converged"
        note = (
            f"{state}; proved Lipschitz constants up to {max(r.constant for r in rungs):.3g};"
            f" {where}"
        )
        columns = ("iterations per layer", "error", "proved bound", "rounding (estimate)")
        return [Sheet(_title(table).replace("\n", ": "), columns, lines, note)]

    def remarks(self, table: Table) -> list[str]:
        if not table.rows or table.rows[-1].converged:
            return []
        return [
            f"After {table.rows[-1].iterations} iterations per layer not every layer has converged."
        ]

    def files(self, table: Table) -> dict[str, bytes]:
        columns = {
            name: np.array([getattr(trip, name) for trip in table])
            for name in ("iterations", "error", "bound", "rounding")
        }
        (tokens,) = table["tokens"]
        arrays = {"x": tokens.x, "y": tokens.y, "found": tokens.found}
        network = {part.name: part.array for part in table["network"]}
        return {
            "invert.npz": _packed(columns | arrays),
            "network.npz": _packed(network),
        }


def _start(config: InvertConfig) -> tuple[Invertible, Tensor]:
    """The stack and the tokens, from one generator."""
    generator = seeded(config.seed)
    network = _network(config, generator)
    heads = network.attentions()[0].heads
    radius = 1.0 if config.radius is None else config.radius
    if network.radius is not None and not network.squash:
        if config.file is not None and config.radius is not None and radius > network.radius:
            raise ValueError(
                f"the radius must be at most that of the stack, {network.radius:g}, got {radius:g}."
            )
        radius = min(radius, network.radius)
    # uniform in the ball, moved half-way to one side so that attention has a mean to move them by
    z = torch.randn(network.tokens, heads.dim, dtype=torch.float64, generator=generator)
    length = torch.rand(network.tokens, 1, dtype=torch.float64, generator=generator)
    ball = length ** (1 / heads.dim) * z / torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    side = torch.nn.functional.one_hot(torch.zeros(1, dtype=torch.long), heads.dim)
    return network, (radius / 2 * (ball + side)).to(heads.query)


def _network(config: InvertConfig, generator: torch.Generator) -> Invertible:
    if config.radius is not None:
        check_positive("radius", config.radius)
    if config.most < 1:
        raise ValueError(f"most must be at least 1, got {config.most}.")
    if config.file is not None:
        return Invertible.load(config.file)
    if config.dtype not in DTYPES:
        raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {config.dtype!r}.")
    if max(config.layers * config.dim**2, config.tokens * config.dim) > MOST_NUMBERS:
        raise ValueError(
            f"{config.layers} layers of {config.dim} x {config.dim} matrices, or {config.tokens}"
            f" tokens, are more than {MOST_NUMBERS:.0e} numbers: choose smaller ones."
        )
    return Invertible.random(
        config.attention,
        config.layers,
        tokens=config.tokens,
        dim=config.dim,
        heads=config.heads,
        radius=1.0 if config.radius is None else config.radius,
        contraction=config.contraction,
        causal=config.causal,
        squash=config.squash,
        dtype=DTYPES[config.dtype],
        generator=generator,
    )


def _hash(network: Invertible, x: Tensor) -> str:
    return hash_tensors({**network.state_dict(), "tokens drawn": x}, repr(network))


def _part(trips: list[Trip], dtype: torch.dtype) -> float:
    """How much is done: bounds fall geometrically down to rounding."""
    if len(trips) < 2 or trips[0].bound <= 0:
        return 0.0
    last = max(trips[-1].bound / trips[0].bound, torch.finfo(dtype).eps)
    return max(0.0, math.log(last) / math.log(torch.finfo(dtype).eps))


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _parts(network: Invertible) -> list[Part]:
    """The arrays of the file that `Invertible.load` reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.npz"
        network.save(path)
        with np.load(path, allow_pickle=False) as held:
            return [Part(name, held[name]) for name in held.files]


def _packed(arrays: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return data.getvalue()


def _title(table: Table) -> str:
    rungs, (tokens,) = table["layers"], table["tokens"]
    return heading(
        variant=rungs[0].attention,
        n=len(tokens.x),
        about=f"{len(rungs)} layers undone",
    )
