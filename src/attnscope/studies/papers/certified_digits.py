"""Certified against attacked accuracy over eps on the digits, with the network that ships
[havens24].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attnscope.studies.cell import Cell
from attnscope.studies.certify import Certify, CertifyConfig
from attnscope.studies.papers._images import CertifiedFigure
from attnscope.studies.workbench import Workbench


@dataclass(frozen=True)
class DigitsConfig:
    images: int = 360
    eps: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255, 0.5)
    steps: int = 100
    restarts: int = 5


class CertifiedDigits(CertifiedFigure):
    """Certified against attacked accuracy on the digits, beside the control with A = 0."""

    name = "certified_digits"
    figure = "certified accuracy on digits"
    seconds = (12, 400)
    Config = DigitsConfig
    fast = DigitsConfig(images=40, eps=(36 / 255, 72 / 255, 108 / 255), steps=20, restarts=1)

    def cells(self, config: DigitsConfig, workbench: Workbench) -> Iterable[Cell]:
        asked = CertifyConfig(
            images=config.images,
            eps=config.eps,
            eps_names=(),
            steps=config.steps,
            restarts=config.restarts,
            bisections=3,
            shard=20,
            nearest=0,
            layers=(),
            explained=0,
        )
        return Certify().cells(asked, workbench)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        return Certify().run(cell, workbench)
