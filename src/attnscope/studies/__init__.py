"""Questions cut into cells: one driver, one store, one style of figures. One file is one study."""

import importlib
import inspect
import pkgutil

from attnscope.studies.cell import Cell
from attnscope.studies.driver import Outcome, run
from attnscope.studies.stop import Stop
from attnscope.studies.store import Store, StoreError
from attnscope.studies.study import Row, Sheet, Study, Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Stopped, Workbench

__all__ = [
    "Cell",
    "Outcome",
    "Row",
    "Sheet",
    "Stop",
    "Stopped",
    "Store",
    "StoreError",
    "Study",
    "Table",
    "Verdict",
    "Workbench",
    "find",
    "run",
]


def find() -> dict[str, Study]:
    """Every study by its name: one file in this folder, or in `papers/`, is one study.

    >>> "measure" in find()
    True
    """
    found: dict[str, Study] = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        if info.name.rsplit(".", 1)[-1].startswith("_"):
            continue
        module = importlib.import_module(info.name)
        for made in vars(module).values():
            if (
                inspect.isclass(made)
                and issubclass(made, Study)
                and not inspect.isabstract(made)
                and made.__module__ == module.__name__
            ):
                if made.name in found:
                    raise ValueError(f"two studies are named {made.name!r}.")
                found[made.name] = made()
    return dict(sorted(found.items()))
