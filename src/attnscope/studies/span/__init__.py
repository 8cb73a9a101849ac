"""The constant of a span of layers beside those of its blocks: `measure` between two places."""

from attnscope.studies.span.rows import (
    Carrier,
    LogitRow,
    PieceRow,
    SpanConfig,
    SpanRow,
    ValueRow,
)
from attnscope.studies.span.study import Spans

__all__ = ["Carrier", "LogitRow", "PieceRow", "SpanConfig", "SpanRow", "Spans", "ValueRow"]
