r"""What LayerNorm does to the radius of the tokens and to the local constant, layer by layer
[castin24].

Before the norm the radius grows with depth; behind it every token lies in the ball of radius
$\sqrt d\max|g| + \|b\|$, which is the R of the theorems. In a pre-norm model the norm acts on the
stream x and the map through it is $f(N(x))$; in a post-norm model it acts on $x + f(x)$.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from attnscope.bounds import layer_norm_radius
from attnscope.data.texts import windows
from attnscope.measures import Particles
from attnscope.models import Part, part_jacobian
from attnscope.operators import spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREY, RED, new_figure, safe
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers._texts import causal_bert, ids_of, left_out, present
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench, hash_ids

ROUNDING = 1e-5
"""Of the networks, which run in float32."""
TOLERANCE = 1e-3


class Normed(NamedTuple):
    """One sequence in one layer: radii before and behind the norm, the proved radius behind it, the
    local constant of attention (with its residual in a post-norm model) without the norm and
    through it.
    """

    model: str
    layer: int
    sequence: int
    before: float
    behind: float
    largest: float
    proved: float
    plain: float
    through: float


@dataclass(frozen=True)
class NormConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "gpt2", "gpt2-random")
    decoder: str | None = None
    n: int = 50
    samples: int = 10
    text: str = "alice"


@dataclass(frozen=True, kw_only=True)
class NormCell(Cell):
    model: str
    weights: str
    text: str
    tokens: str
    n: int
    samples: int


class LayerNorm(PaperFigure):
    """What LayerNorm does to the radius of the tokens and to the local constant."""

    name = "layer_norm"
    paper = "castin24"
    figure = "what LayerNorm does"
    topic = "smoothness"
    seconds = (15, 300)
    Config = NormConfig
    fast = NormConfig(models=("minilm", "gpt2-random"), n=24, samples=2)
    tables: ClassVar[dict[str, type]] = {"results": Normed}

    def cells(self, config: NormConfig, workbench: Workbench) -> Iterable[NormCell]:
        for model in present(config.models, config.decoder, workbench):
            ids = ids_of(model, config.text, workbench)
            windows(ids, config.n, config.samples)
            yield NormCell(
                model=model.name,
                weights=workbench.weights(model.name),
                text=config.text,
                tokens=hash_ids(ids),
                n=config.n,
                samples=config.samples,
            )

    def run(self, cell: NormCell, workbench: Workbench) -> list[Normed]:
        causal_bert(cell.model, workbench)
        model = workbench.model(cell.model, weights=cell.weights)
        ids = windows(ids_of(model, cell.text, workbench), cell.n, cell.samples)
        made = []
        layers = range(model.layers)
        for layer, x, read in model.points(ids, layers, "block"):
            workbench.check(layer / model.layers, f"{cell.model}, layer {layer}")
            norm: Any = model.norm(layer)
            bare: Part = "attention" if model.pre_norm else "residual"
            if model.pre_norm:
                before, point = x, read
            else:
                before, point = x + model.attention(layer)(x, Particles(x)), x
            with torch.no_grad():
                behind = norm(before)
            plain, through = (
                spectral_norm(op, tol=TOLERANCE).lower
                for op in (
                    part_jacobian(model, layer, bare, point),
                    part_jacobian(model, layer, "norm+attention", x),
                )
            )
            proved = float(layer_norm_radius(norm.weight.detach(), norm.bias.detach()))
            radii, inside = (_norms(tokens) for tokens in (before, behind))
            made += [
                Normed(
                    cell.model,
                    layer,
                    sequence,
                    float(radii[sequence].square().mean().sqrt()),
                    float(inside[sequence].square().mean().sqrt()),
                    float(inside[sequence].max()),
                    proved,
                    float(torch.as_tensor(plain)[sequence]),
                    float(torch.as_tensor(through)[sequence]),
                )
                for sequence in range(cell.samples)
            ]
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        models = list(dict.fromkeys(row.model for row in table))
        figure = new_figure(4 * len(models) + 0.5, 5.6)
        figure.suptitle("Radius of the tokens and local constant, before and behind LayerNorm")
        axes = figure.subplots(2, len(models), squeeze=False)
        for column, name in enumerate(models):
            rows = [row for row in table if row.model == name]
            layers = [row.layer for row in rows]
            above, below = axes[:, column]
            above.scatter(layers, [r.before for r in rows], s=12, color=RED, label="before")
            above.scatter(
                layers, [r.behind for r in rows], s=12, marker="s", color=BLUE, label="behind"
            )
            above.plot(layers, [r.proved for r in rows], ":", color=GREY, label="proved, behind")
            above.set(yscale="log", title=safe(name), ylabel="" if column else "radius")
            below.scatter(layers, [r.plain for r in rows], s=12, color=RED, label="without")
            below.scatter(
                layers, [r.through for r in rows], s=12, marker="s", color=BLUE, label="through it"
            )
            below.set(yscale="log", xlabel="layer", ylabel="" if column else r"$\sigma_{max}$")
        axes[0, 0].legend()
        axes[1, 0].legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.model for row in table):
            rows = [row for row in table if row.model == name]
            share = max(row.largest / row.proved for row in rows)
            made.append(
                Verdict(
                    f"{name}: behind the norm every token lies in the proved ball",
                    "norms up to sqrt(d) max|g| + |b|",
                    f"largest token norm {share:.1%} of the radius, {len(rows)} readings",
                    share <= 1 + ROUNDING,
                    "a theorem",
                )
            )
            spread = [_spread([getattr(row, where) for row in rows]) for where in WHERE]
            made.append(
                Verdict(
                    f"{name}: the norm makes the radii of all layers alike",
                    "it controls R",
                    f"largest over smallest radius {spread[0]:.3g} before, {spread[1]:.3g} behind",
                    spread[1] < spread[0],
                    "behind the norm radii of all layers and sequences differ by less",
                )
            )
        return made

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)


WHERE = ("before", "behind")


def _norms(tokens: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tokens, dim=-1, dtype=torch.float64)


def _spread(values: list[float]) -> float:
    return max(values) / min(values)
