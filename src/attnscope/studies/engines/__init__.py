"""Where cells run: here, in processes of this machine, on a cluster. One file is one engine."""

from attnscope.studies.engines.engine import Engine, EngineError, Given
from attnscope.studies.engines.here import Here
from attnscope.studies.engines.local import Local
from attnscope.studies.engines.worker import CellFailed

__all__ = ["CellFailed", "Engine", "EngineError", "Given", "Here", "Local"]
