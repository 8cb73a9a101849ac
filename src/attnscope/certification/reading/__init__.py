"""Networks that are taken apart into graphs of layers: one file is one family.

A network is never run to see what it does. It is rebuilt from modules of exactly known types whose
forward functions are their classes' own; anything else is refused. So a network that looks at its
image on the side, keeps a count, or draws numbers has no way in.
"""

from attnscope.certification.reading.hugging_face import computes_in_single
from attnscope.certification.reading.rules import Reader, readers, rule
from attnscope.certification.reading.taking_apart import is_composite, taken_apart

__all__ = ["Reader", "computes_in_single", "is_composite", "readers", "rule", "taken_apart"]
