"""Local Lipschitz constants of a model on a text: sweep, fit, files and figures."""

from attnscope.measure.fit import Fit, growth
from attnscope.measure.sweep import Plan, Row, sweep

__all__ = ["Fit", "Plan", "Row", "growth", "sweep"]
