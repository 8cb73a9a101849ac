r"""Tokens through a trained network against the Gaussian prediction: the attention step of every
layer beside the closed form on the Gaussian of the tokens' mean and covariance [castin25].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import scipy.stats

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREY, RED, new_figure, safe
from attnscope.studies.papers._figure import CONFIDENCE, PaperFigure, between, share
from attnscope.studies.papers._texts import causal_bert, left_out, present, quiet
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.trace.rows import Step as Traced
from attnscope.studies.trace.rows import TraceConfig
from attnscope.studies.trace.study import Trace
from attnscope.studies.workbench import Workbench


class Foreseen(NamedTuple):
    """The attention step of one layer at one text: errors of the Gaussian prediction relative to
    the motion (1 is what predicting no motion gives), and anisotropy before, after and predicted.
    """

    model: str
    layer: int
    sequence: int
    mean: float
    covariance: float
    tokens: float
    tokens_uniform: float
    before: float
    after: float
    predicted: float


@dataclass(frozen=True)
class DepthConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "gpt2")
    decoder: str | None = None
    n: int = 128
    samples: int = 5
    text: str = "alice"


class TokensThroughDepth(PaperFigure):
    """Tokens through a trained network against the prediction of the Gaussian theory."""

    name = "tokens_through_depth"
    paper = "castin25"
    figure = "tokens through a trained network"
    topic = "dynamics"
    seconds = (8, 200)
    Config = DepthConfig
    fast = DepthConfig(models=("minilm",), n=48, samples=3)
    tables: ClassVar[dict[str, type]] = {"results": Foreseen}

    def cells(self, config: DepthConfig, workbench: Workbench) -> Iterable[Cell]:
        for model in present(config.models, config.decoder, workbench):
            asked = TraceConfig(model.name, config.text, config.n, config.samples)
            with quiet():
                yield from list(Trace().cells(asked, workbench))

    def run(self, cell: Any, workbench: Workbench) -> list[Foreseen]:
        causal_bert(cell.model, workbench)
        return [
            Foreseen(
                cell.model,
                row.layer,
                row.sequence,
                row.mean_error,
                row.cov_error,
                row.token_error,
                row.token_error_uniform,
                row.anisotropy_before,
                row.anisotropy_after,
                row.anisotropy_predicted,
            )
            for row in Trace().run(cell, workbench)
            if isinstance(row, Traced)
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        models = list(dict.fromkeys(row.model for row in table))
        figure = new_figure(8.6, 3.6 * len(models))
        figure.suptitle("The attention step of each layer against the Gaussian prediction")
        axes = figure.subplots(len(models), 2, squeeze=False)
        for (left, right), name in zip(axes, models, strict=True):
            rows = [row for row in table if row.model == name]
            layers = [row.layer for row in rows]
            for field, color, marker in (
                ("mean", BLUE, "o"),
                ("covariance", RED, "^"),
                ("tokens", GREY, "s"),
            ):
                values = [getattr(row, field) for row in rows]
                left.scatter(layers, values, s=14, color=color, marker=marker, label=field)
            left.axhline(1, color="black", linestyle=":", linewidth=1)
            left.set(yscale="log", xlabel="layer", title=safe(name))
            left.set_ylabel("error relative to the motion")
            left.legend()
            right.scatter(layers, [row.after for row in rows], s=14, color=BLUE, label="after")
            predicted = [row.predicted for row in rows]
            right.scatter(layers, predicted, s=14, marker="^", color=RED, label="predicted")
            before = [row.before for row in rows]
            right.scatter(layers, before, s=14, marker="_", color=GREY, label="before")
            right.set(xlabel="layer", ylabel="largest eigenvalue / trace", title="anisotropy")
            right.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.model for row in table):
            rows = [row for row in table if row.model == name]
            for what, better in (
                ("the motion of the mean", [row.mean < 1 for row in rows]),
                ("the motion of the covariance", [row.covariance < 1 for row in rows]),
                (
                    "the anisotropy",
                    [abs(row.predicted - row.after) < abs(row.before - row.after) for row in rows],
                ),
            ):
                made.append(_verdict(f"{name}: the Gaussian theory foresees {what}", better))
            errors = [row.tokens for row in rows]
            made.append(
                Verdict(
                    f"{name}: the Gaussian theory foresees the motion of each token",
                    "it is about Gaussians, not about tokens",
                    f"errors {between(errors, '.2f')} of the motion",
                    _told([row.tokens < row.tokens_uniform for row in rows]),
                    "in most layers better than reading all tokens alike, by the 95 % interval",
                )
            )
        return made

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)


def _verdict(statement: str, better: list[bool]) -> Verdict:
    return Verdict(
        statement,
        "captures how anisotropy evolves",
        f"better than no motion in {share(sum(better), len(better))} layers",
        _told(better),
        "the 95 % interval of the share lies above one half, or below it",
    )


def _told(better: list[bool]) -> bool | None:
    """Whether it is so more often than not."""
    interval = scipy.stats.binomtest(sum(better), len(better)).proportion_ci(CONFIDENCE, "exact")
    return True if interval.low > 0.5 else False if interval.high < 0.5 else None
