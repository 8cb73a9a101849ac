"""Tokens on their way through a network: shapes by depth, and the Gaussian theory beside them."""

from attnscope.studies.trace.door import trace
from attnscope.studies.trace.rows import Absent, Reading, State, Step, TraceConfig
from attnscope.studies.trace.study import Trace

__all__ = ["Absent", "Reading", "State", "Step", "Trace", "TraceConfig", "trace"]
