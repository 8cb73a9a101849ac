"""Local Lipschitz constants of a model on a text: cells, fit, summary and figures."""

from attnscope.studies.measure.directions import DirectionRow
from attnscope.studies.measure.door import measure
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.measure.rows import BoundRow, MeasureConfig, Row
from attnscope.studies.measure.study import Measure

__all__ = [
    "BoundRow",
    "DirectionRow",
    "MeasureConfig",
    "Fit",
    "Measure",
    "Row",
    "growth",
    "measure",
]
