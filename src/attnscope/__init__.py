"""attnscope: the regularity and dynamics of attention, as a map between probability measures.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
`import attnscope` costs nothing and a program pays only for the rooms that it enters.
"""

import lazy_loader

__version__ = "0.4.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
