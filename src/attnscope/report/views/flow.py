"""The page of `flow`: tokens in motion, and what became of them."""

from __future__ import annotations

import numpy as np

from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.report.markup import number
from attnscope.report.player import player
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.flow import Flow

MOST_TOKENS = 300
OUTLINE = 48
"""Corners of an ellipse."""


class FlowView(View):
    kind = Flow

    def opening(self, table: Table) -> Opening:
        config, row = table.config, table.rows[0]
        mask = "causal " if config.causal else ""
        what = "a Gaussian of tokens" if config.gaussian else f"{config.particles} tokens"
        where = {"euclidean": "", "sphere": " on the sphere"}.get(config.space, " on an ellipsoid")
        words = [
            f"How do {what} in dimension {config.dim} move{where} when every layer of a very deep"
            f" transformer with {mask}{config.attention} attention moves them a little?",
            f"{row.reason[:1].upper()}{row.reason[1:]}",
        ]
        numbers = [
            Number(
                row.status,
                f"t = {number(row.stop_time)}",
                Standing.ESTIMATE,
                f"Integrated to a relative tolerance of {config.rtol:g} per step.",
            )
        ]
        if row.clusters is not None:
            told = f"{row.clusters_before} → {row.clusters}"
            apart = "a twentieth of the cloud's radius" if config.gap is None else f"{config.gap:g}"
            note = f"Tokens no further apart than {apart} belong together."
            numbers.append(Number("clusters", told, Standing.ESTIMATE, note))
        if row.rank is not None:
            told = f"{row.rank_before} → {row.rank}"
            numbers.append(Number("rank", told, Standing.ESTIMATE, "By the widest spectral gap."))
        if row.energy is not None and row.energy_before is not None:
            told = f"{number(row.energy_before)} → {number(row.energy)}"
            numbers.append(Number("energy", told, Standing.ESTIMATE))
        return Opening(f"The flow of {mask}{config.attention} attention", words, numbers)

    def blocks(self, table: Table) -> list[Block]:
        clouds, normals = table["clouds"], table["gaussians"]
        if clouds and clouds[0].x.shape[1] >= 2:
            step = max(1, len(clouds[0].x) // MOST_TOKENS)
            frames = np.stack([row.x[::step][:MOST_TOKENS, :2] for row in clouds])
            times = [row.time for row in clouds]
            note = "The first two coordinates of the tokens."
            if step > 1:
                note += f" One token in {step} is drawn."
        elif normals and normals[0].mean.shape[0] >= 2:
            frames = np.stack([_outline(row.mean, row.cov) for row in normals])
            times = [row.time for row in normals]
            note = "One standard deviation in the first two coordinates."
        else:
            return []
        body = player(times, frames, closed=not clouds, about="tokens at a time", place="player")
        return [Block("In motion", body, note)]


def _outline(mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """The ellipse of one standard deviation in the plane of the first two coordinates."""
    values, vectors = np.linalg.eigh(cov[:2, :2])
    angle = np.linspace(0, 2 * np.pi, OUTLINE, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    return (mean[:2, None] + (vectors * np.sqrt(np.maximum(values, 0))) @ circle).T
