"""The study of a flow: how tokens, or a Gaussian of tokens, move through depth."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention
from attnscope.flows import (
    Ellipsoid,
    Sphere,
    Trajectory,
    anisotropy,
    clusters,
    energy,
    flow,
    spectral_gap_rank,
)
from attnscope.measures import Gaussian, Particles
from attnscope.studies import drawing
from attnscope.studies._flow_pictures import Moving, animation, still
from attnscope.studies.cell import Cell
from attnscope.studies.matrices import attention_of_matrices, load_array, seeded
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench, check_hash, hash_tensors
from attnscope.validation import check_positive

MOST_NUMBERS = 2 * 10**8
"""Of all states together."""
SHORT = 2000
"""Up to so many tokens a flow that blew up early is computed again, with all its frames before."""
FEW = 3


class Ending(NamedTuple):
    """How a flow ended, and what its first and last states look like.

    Clusters and radius are those of particles; rank, anisotropy and trace of a Gaussian.
    """

    status: str
    stop_time: float
    reason: str
    evaluations: int
    field_error: float
    clusters_before: int | None
    clusters: int | None
    rank_before: int | None
    rank: int | None
    anisotropy_before: float | None
    anisotropy: float | None
    energy_before: float | None
    energy: float | None
    no_energy: str
    """Why there is none."""


class Cloud(NamedTuple):
    """The particles at one time."""

    time: float
    radius: float
    x: np.ndarray


class Normal(NamedTuple):
    """The Gaussian at one time."""

    time: float
    trace: float
    mean: np.ndarray
    cov: np.ndarray


@dataclass(frozen=True)
class FlowConfig:
    """Matrices are named (`MATRICES`) or .npy files; so are the gains of an ellipsoid.

    Args:
        gap: Tokens this close belong to one cluster; a twentieth of the radius if left out.
    """

    attention: str = "softmax"
    heads: int = 1
    scores: str = "identity"
    values: str = "identity"
    particles: int = 64
    gaussian: bool = False
    dim: int = 2
    time: float = 5.0
    space: str = "euclidean"
    causal: bool = False
    gap: float | None = None
    method: str = "DOP853"
    rtol: float = 1e-6
    frames: int = 60
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class FlowCell(FlowConfig, Cell):
    """One whole flow; `matrices` is the hash of what it is made of, files included."""

    matrices: str


class Setting(NamedTuple):
    """What a config comes to."""

    field: Attention
    start: Any
    space: Sphere | Ellipsoid | None


class Flow(Study):
    name = "flow"
    Config = FlowConfig
    fast = FlowConfig(particles=16, time=1.0, frames=8)
    tables: ClassVar[dict[str, type]] = {"results": Ending, "clouds": Cloud, "gaussians": Normal}

    def cells(self, config: FlowConfig, workbench: Workbench) -> Iterable[FlowCell]:
        _check(config)
        setting = _setting(config)
        _first_step(config, setting)
        yield FlowCell(**asdict(config), matrices=_hash(setting))

    def run(self, cell: FlowCell, workbench: Workbench) -> list[Any]:
        setting = _setting(cell)
        check_hash("the matrices of the flow", _hash(setting), cell.matrices)

        def moved(end: float) -> Trajectory[Any]:
            times = np.linspace(0, end, cell.frames + 1).tolist()
            return _flow(
                cell,
                setting,
                times,
                lambda t: workbench.going(t / end, f"t = {t:.4g} of {end:.4g}"),
            )

        got = moved(cell.time)
        early = got.status == "blew up" and len(got.states) < cell.frames // 2
        if early and cell.particles <= SHORT and got.stop_time > 0:
            again = moved(got.stop_time)
            got = got if again.status == "stopped" else again
        return [_ending(cell, setting, got), *_states(got)]

    def figures(self, table: Table) -> dict[str, Any]:
        return {"flow": still(_moving(table))}

    def summary(self, table: Table) -> list[Sheet]:
        return [_sheet(table, row) for row in table]

    def files(self, table: Table) -> dict[str, bytes]:
        files = {"flow.npz": _arrays(table)}
        if drawing.available():
            files["flow.gif"] = animation(_moving(table))
        return files


def _check(config: FlowConfig) -> None:
    """What would fail only at the end, or fill the memory, is said at once."""
    check_positive("time", config.time)
    if config.gap is not None:
        check_positive("gap", config.gap)
    for name, least in (("heads", 1), ("particles", 1), ("dim", 1), ("frames", 2)):
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}.")
    tokens = config.dim if config.gaussian else config.particles
    if tokens * config.dim * (config.frames + 1) > MOST_NUMBERS:
        raise ValueError(
            f"{config.frames + 1} states of {tokens} x {config.dim} numbers are more than"
            f" {MOST_NUMBERS:.0e}: choose fewer frames or fewer tokens."
        )


def _setting(config: FlowConfig, particles: int | None = None) -> Setting:
    generator = seeded(config.seed)
    field = attention_of_matrices(
        config.attention,
        config.heads,
        config.scores,
        config.values,
        config.dim,
        config.causal,
        generator,
    )
    space = _space(config.space)
    if isinstance(space, Ellipsoid) and len(space.axes) != config.dim:
        raise ValueError(
            f"{config.space} must hold one gain for each of {config.dim} dimensions, got"
            f" {len(space.axes)}."
        )
    if config.gaussian:
        z = torch.randn(config.dim, config.dim, dtype=torch.float64, generator=generator)
        cov = z @ z.mT / (z @ z.mT).trace()
        return Setting(field, Gaussian(torch.zeros(config.dim, dtype=torch.float64), cov), space)
    n = config.particles if particles is None else particles
    x = torch.randn(n, config.dim, dtype=torch.float64, generator=generator)
    return Setting(field, Particles(x if space is None else space(x)), space)


def _space(name: str) -> Sphere | Ellipsoid | None:
    if name == "euclidean":
        return None
    if name == "sphere":
        return Sphere()
    if name.endswith(".npy"):
        return Ellipsoid.from_gains(torch.from_numpy(load_array(name)))
    raise ValueError(f'space must be "euclidean", "sphere" or a .npy file of gains, got {name!r}.')


def _hash(setting: Setting) -> str:
    """Of the matrices, and of a few tokens on the surface, which tell one surface from another."""
    heads = setting.field.heads
    tensors = {"query": heads.query, "key": heads.key, "value": heads.value}
    if isinstance(setting.start, Particles):
        tensors["start"] = setting.start.x[:FEW]
    return hash_tensors(tensors)


def _flow(config: FlowConfig, setting: Setting, times: list[float], progress: Any) -> Any:
    return flow(
        setting.field,
        setting.start,
        times,
        config.rtol,
        config.rtol / 100,
        setting.space,
        method=config.method,
        progress=progress,
    )


def _first_step(config: FlowConfig, setting: Setting) -> None:
    """One step of a few tokens raises what a whole flow would raise."""
    if not config.gaussian and config.particles > FEW:
        setting = _setting(config, FEW)
    _flow(config, setting, [0.0, config.time], lambda t: False)


def _ending(config: FlowConfig, setting: Setting, got: Trajectory[Any]) -> Ending:
    first, last = got.states[0], got.final
    groups: list[int | None] = [None, None]
    ranks: list[int | None] = [None, None]
    widths: list[float | None] = [None, None]
    for place, state in enumerate((first, last)):
        if isinstance(state, Particles):
            # all tokens may meet in the origin, where the radius is no scale
            gap = max(float(state.radius()) / 20, 1e-300) if config.gap is None else config.gap
            groups[place] = clusters(state, gap).number
        else:
            ranks[place] = int(spectral_gap_rank(state.cov))
            widths[place] = float(anisotropy(state.cov))
    energies: list[float | None] = [None, None]
    reason = ""
    try:
        energies = [energy(setting.field, state, setting.space).value for state in (first, last)]
    except ValueError as error:
        reason = str(error)
    return Ending(
        got.status,
        float(got.stop_time),
        got.outcomes[0].reason,
        got.evaluations,
        float(got.field_error),
        *(groups[0], groups[1], ranks[0], ranks[1], widths[0], widths[1]),
        *(energies[0], energies[1], reason),
    )


def _states(got: Trajectory[Any]) -> list[Any]:
    pairs = zip(got.times.tolist(), got.states, strict=True)
    if isinstance(got.final, Particles):
        return [Cloud(t, float(state.radius()), state.x.numpy()) for t, state in pairs]
    return [
        Normal(t, float(state.cov.trace()), state.mean.numpy(), state.cov.numpy())
        for t, state in pairs
    ]


def _moving(table: Table) -> Moving:
    """What pictures show: states in time, and a title."""
    config, ending = table.config, table.rows[0]
    about = f"{ending.status} at t = {ending.stop_time:.4g}"
    n = None if config.gaussian else config.particles
    title = drawing.heading(
        variant=f"{config.attention}{', causal' if config.causal else ''}", n=n, about=about
    )
    clouds, normals = table["clouds"], table["gaussians"]
    show = partial(Moving, np.array([row.time for row in clouds or normals]), title, ending.status)
    if clouds:
        return show(x=np.stack([row.x for row in clouds]))
    return show(
        mean=np.stack([row.mean for row in normals]), cov=np.stack([row.cov for row in normals])
    )


def _arrays(table: Table) -> bytes:
    """flow.npz: times and states."""
    moving, ending = _moving(table), table.rows[0]
    arrays: dict[str, Any] = {
        "times": moving.times,
        "status": np.array(ending.status),
        "stop_time": np.array(ending.stop_time),
    }
    if moving.x is not None:
        n = moving.x.shape[1]
        arrays |= {"x": moving.x, "weights": np.full(n, 1 / n)}
    else:
        arrays |= {"mean": moving.mean, "cov": moving.cov}
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return data.getvalue()


def _sheet(table: Table, row: Ending) -> Sheet:
    config = table.config
    lines: list[tuple[str, ...]] = [("status", f"{row.status} at t = {row.stop_time:.6g}")]
    # sentences go below the table: its columns are as wide as the terminal at most
    note = f"{row.status}: {row.reason}"
    if clouds := table["clouds"]:
        gap = "radius / 20" if config.gap is None else f"{config.gap:.3g}"
        lines += [
            (f"clusters (gap: {gap})", f"{row.clusters_before} -> {row.clusters}"),
            ("radius", f"{clouds[0].radius:.6g} -> {clouds[-1].radius:.6g}"),
        ]
    if normals := table["gaussians"]:
        lines += [
            ("rank (widest gap)", f"{row.rank_before} -> {row.rank}"),
            ("largest eigenvalue / trace", f"{row.anisotropy_before:.6g} -> {row.anisotropy:.6g}"),
            ("trace", f"{normals[0].trace:.6g} -> {normals[-1].trace:.6g}"),
        ]
    if row.energy_before is None or row.energy is None:
        lines.append(("energy", "none"))
        note = f"{note}\nno energy: {row.no_energy}"
    elif math.isfinite(row.energy):
        change = f"(change {row.energy - row.energy_before:+.3g})"
        lines.append(("energy", f"{row.energy_before:.6g} -> {row.energy:.6g} {change}"))
    else:
        lines.append(("energy", f"{row.energy_before:.6g} -> beyond floating point"))
    lines.append(("field evaluations", str(row.evaluations)))
    if row.field_error > 0:
        lines.append(
            ("interpolated field", f"relative error up to {row.field_error:.1e} (estimate)")
        )
    return Sheet(f"{config.attention} flow", ("", "start -> end"), lines, note)
