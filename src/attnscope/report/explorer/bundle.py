"""Many small ES modules become one script that a page can hold: what a browser would load by
itself, were it allowed to load modules from a file.

Every module becomes a function of the names it imports; they run in the order of their imports. The
modules keep to two forms, `import { a, b } from "./c.js"` and `export` before a function, a class
or a const; anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]*)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
OTHER = re.compile(r"^(import\b.*|export\b.*)", re.MULTILINE)


def bundled(modules: Mapping[str, str], start: str) -> str:
    """A script that runs module `start` and all it needs; `explorer` holds what each exports."""
    made: dict[str, str] = {}
    _add(start, modules, made, ())
    return "'use strict';\nconst explorer = {};\n" + "".join(made.values())


def _add(
    name: str, modules: Mapping[str, str], made: dict[str, str], waiting: tuple[str, ...]
) -> None:
    if name in made:
        return
    if name in waiting:
        raise ValueError(f"modules import each other: {' -> '.join((*waiting, name))}.")
    if name not in modules:
        raise ValueError(f"{waiting[-1] if waiting else 'the page'} imports {name}, which is none.")
    source = modules[name]
    lines = []
    for names, path in IMPORT.findall(source):
        found = normpath(join(dirname(name), path))
        _add(found, modules, made, (*waiting, name))
        lines.append(f'const {{ {" ".join(names.split())} }} = explorer["{found}"];\n')
    exported = EXPORT.findall(source)
    body = EXPORT.sub("", IMPORT.sub("", source))
    if other := OTHER.search(body):
        raise ValueError(f"{name} holds a form that is not understood: {other[0]}")
    made[name] = (
        f'explorer["{name}"] = (() => {{\n{"".join(lines)}{body}'
        f"return {{ {', '.join(exported)} }};\n}})();\n"
    )
