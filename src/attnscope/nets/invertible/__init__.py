"""Stacks of residual attention that can be inverted, with a proved contraction."""

from attnscope.nets.invertible.stack import Inverse, Invertible, LogDeterminant

__all__ = ["Inverse", "Invertible", "LogDeterminant"]
