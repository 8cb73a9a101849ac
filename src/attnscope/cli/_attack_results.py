"""What `attnscope attack` shows and keeps of each attack: a table, a record, arrays and a
picture.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from attnscope.attacks import Comparison, Curves, Split, WorstCase


@dataclass
class Results:
    """Records for attack.json and the contents of the other files."""

    console: Console
    record: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def worst(self, found: WorstCase, title: str) -> None:
        table = Table(title=f"{title}: worst input found", show_header=False)
        table.add_row(
            "local constant there", f"{found.value:.6g} (proved lower bound of the largest)"
        )
        table.add_row(
            "proved upper bound",
            (
                "none known"
                if found.bound is None
                else f"{found.bound.value:.6g} ({found.bound.name})"
            ),
        )
        table.add_row("ratio", "" if found.ratio is None else f"{found.ratio:.4g}")
        table.add_row("began at", found.start)
        table.add_row(
            "tokens",
            f"{found.mu.n} of norm {float(found.tokens.norm(dim=-1).min()):.4g} to"
            f" {float(found.mu.radius()):.4g}",
        )
        table.add_row(
            "masses", f"{float(found.weights.min()):.3g} to {float(found.weights.max()):.3g}"
        )
        self.console.print(table)
        self.record["worst"] = {
            "value": found.value,
            "bound": None if found.bound is None else asdict(found.bound),
            "ratio": found.ratio,
            "start": found.start,
            "starts": {
                name: [first, last]
                for name, first, last in zip(
                    found.names, *found.history[[0, -1]].tolist(), strict=True
                )
            },
        }
        data = io.BytesIO()
        np.savez(
            data,
            tokens=found.tokens.cpu().numpy(),
            weights=found.weights.cpu().numpy(),
            history=found.history.cpu().numpy(),
        )
        self.files["worst.npz"] = data.getvalue()
        self._picture("worst.png", lambda: _pictures().worst(found))

    def law(self, law: Split, title: str) -> None:
        table = Table(title=f"{title}: mass splitting, the exact law", show_header=False)
        table.add_row("moving tokens", f"{law.move:.6g}")
        table.add_row("halves apart", f"{law.split:.6g} (token {law.token})")
        table.add_row(
            "gain of splitting",
            f"{law.gain:.6g}" + ("" if law.pays else ": moving is at least as strong"),
        )
        if not law.converged:
            table.add_row("note", "not converged: both numbers are lower bounds")
        self.console.print(table)
        self.record["split"] = {
            "move": law.move,
            "split": law.split,
            "gain": law.gain,
            "token": law.token,
            "converged": law.converged,
            "direction": law.direction.tolist(),
            "apart": law.apart.tolist(),
        }

    def comparison(self, found: Comparison, title: str) -> None:
        self.law(found.law, title)
        table = Table(title="finite attacks: W_2 of the outputs per W_2 of the inputs")
        for name in ("budget", "moving", "splitting"):
            table.add_column(name, justify="right")
        for move, split in zip(found.move, found.split, strict=True):
            table.add_row(f"{move.eps:.4g}", f"{move.ratio:.6g}", f"{split.ratio:.6g}")
        self.console.print(table)
        self.record["split"]["attacks"] = [
            {"kind": kind, **attack._asdict(), "ratio": attack.ratio}
            for kind, attempts in (("move", found.move), ("split", found.split))
            for attack in attempts
        ]
        self._picture("split.png", lambda: _pictures().split(found))

    def curves(self, found: Curves) -> None:
        table = Table(
            title="L(n, R): largest constant found (lower bound) and tightest proved upper bound"
        )
        for name in ("n", "R", "found", "upper bound"):
            table.add_column(name, justify="right")
        for point in found.points:
            upper = point.bounds.tightest
            table.add_row(
                str(point.n),
                f"{point.radius:.4g}",
                f"{point.found.value:.5g}",
                f"{upper.value:.5g} ({upper.name})",
            )
        self.console.print(table)
        self.record["curves"] = [
            {
                "n": point.n,
                "radius": point.radius,
                "found": point.found.value,
                "bounds": {b.name: b.value for b in point.bounds},
            }
            for point in found.points
        ]
        self._picture("curves.png", found.png)

    def _picture(self, name: str, draw: Callable[[], bytes]) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            self.console.print(
                'Pictures need matplotlib: pip install "attnscope[plot]".', markup=False
            )
        else:
            self.files[name] = draw()


def _pictures() -> Any:
    from attnscope.cli import _attack_pictures

    return _attack_pictures
