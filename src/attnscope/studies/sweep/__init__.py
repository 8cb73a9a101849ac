"""Thousands of texts, layers and models: a plan over the cells of `measure`."""

from attnscope.studies.sweep.plan import SweepConfig, Unavailable
from attnscope.studies.sweep.study import Sweep

__all__ = ["Sweep", "SweepConfig", "Unavailable"]
