"""The page of `trace`: the tokens of a text on their way through the layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.report.markup import number
from attnscope.report.player import player
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.trace import Trace


class TraceView(View):
    kind = Trace

    def opening(self, table: Table) -> Opening:
        rows = [row for row in table if row.sequence == table.rows[0].sequence]
        first, last = rows[0], rows[-1]
        model, text = Path(table.config.model).name, Path(table.config.text).name
        words = [
            f"Where do {first.n} tokens of {text} go on their way through {model}? At each of"
            f" {len(rows)} depths: how they spread, how many directions they fill, and how far they"
            " moved; beside it what the theory of Gaussians predicts.",
        ]
        numbers = [
            Number(
                "directions that they fill",
                f"{number(first.effective_rank, 3)} → {number(last.effective_rank, 3)}",
                Standing.ESTIMATE,
                f"Effective rank in dimension {first.dim}, from first to last depth.",
            ),
            Number(
                "mean cosine of two tokens",
                f"{number(first.mean_cosine, 2)} → {number(last.mean_cosine, 2)}",
                Standing.ESTIMATE,
                "1 would be tokens that all point the same way.",
            ),
        ]
        verdicts = table.verdicts()
        if verdicts:
            held = sum(verdict.holds is True for verdict in verdicts)
            told = f"{held} of {len(verdicts)}"
            numbers.append(Number("statements of the theory that hold", told, Standing.COUNTED))
        return Opening(f"The tokens of {text} through {model}", words, numbers)

    def blocks(self, table: Table) -> list[Block]:
        rows = [row for row in table if row.sequence == table.rows[0].sequence]
        if len(rows) < 2:
            return []
        frames = np.stack([row.points[:, :2] for row in rows])
        depths = [float(row.depth) for row in rows]
        body = player(depths, frames, False, "tokens by depth", "player", "depth")
        return [Block("In motion", body, "Along two axes that all depths share.")]
