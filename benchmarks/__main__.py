"""`python -m benchmarks [NAME ...]`: run the benchmarks of this folder, print ratios, write
benchmarks/results.json.

`python -m benchmarks --markdown` prints the table of docs/benchmarks.md from the results that are
there, `python -m benchmarks --readme` that of README.md.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.table import COLUMNS, as_markdown, rows, those_that_matter

RESULTS = Path(__file__).parent / "results.json"


def main(chosen: list[str]) -> None:
    tables = {"--markdown": as_markdown, "--readme": those_that_matter}
    if len(chosen) == 1 and chosen[0] in tables:
        print(tables[chosen[0]](_results()))
        return
    names = [
        info.name for info in pkgutil.iter_modules([str(RESULTS.parent)]) if info.name != "__main__"
    ]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    able = {name: module.main for name, module in modules.items() if hasattr(module, "main")}
    unknown = set(chosen) - set(able)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(able)}.")
    console = Console()
    for name in chosen or able:
        with console.status(f"{name} ..."):
            found = able[name]()
        _show(console, name, found)
        partial = RESULTS.with_suffix(".partial")
        partial.write_text(json.dumps(_results() | {name: found}, indent=1) + "\n")
        os.replace(partial, RESULTS)


def _results() -> dict[str, Any]:
    """What is known so far, read afresh: another benchmark may have ended in the meantime."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _show(console: Console, name: str, found: dict[str, Any]) -> None:
    table = Table(*COLUMNS, title=name)
    for what, measured, must, stretch, good in rows(found):
        table.add_row(what, measured if good else f"[red]{measured}[/red]", must, stretch)
    console.print(table)


main(sys.argv[1:])
