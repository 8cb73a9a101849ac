"""The shape of the house: imports go one way, private names stay in their room, and nothing outside
`attention/` asks which variant it has.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from attnscope.attention import Attention, variants

SOURCE = Path(__file__).parents[1] / "src/attnscope"

ROOMS = (
    "validation",
    "files",
    "machine",
    "measures",
    "norms",
    "attention",
    "operators",
    "bounds",
    "transport",
    "flows",
    "data",
    "layers",
    "nets",
    "attacks",
    "models",
    "certification",
    "training",
    "studies",
    "report",
    "cli",
    "__main__",
)
"""A room may import from those before it. Names of rooms that are not there yet do no harm."""

STATE_THEOREMS = (
    "bounds/smooth/",
    "bounds/near/",
    "bounds/constructions.py",
    "bounds/large_radius.py",
)
"""Files that may ask for a variant by its class: a theorem is about one."""

CROSSINGS: tuple[str, ...] = ()
"""Private names that cross rooms and must not for long."""

TUPLE_METHODS = {"_replace", "_asdict", "_fields", "_make"}


class Module(NamedTuple):
    """A file of the package; `room` is its folder, or itself at the top."""

    path: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return Path(self.path).parts[0].removesuffix(".py")


@cache
def modules() -> list[Module]:
    return [
        Module(str(path.relative_to(SOURCE)), ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def imported(module: Module) -> Iterator[tuple[str, str]]:
    """What a file imports from the package, wherever the import stands: (module, name or "")."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}: imports name their module in full"
            yield from ((node.module or "", alias.name) for alias in node.names)


def of_package(module: Module) -> list[tuple[str, str, str]]:
    """(room, module, name) of every import from the package; of `from attnscope import x` x is the
    room.
    """
    found = []
    for source, name in imported(module):
        parts = source.split(".")
        if parts[0] == "attnscope":
            found.append((parts[1] if len(parts) > 1 else name, source, name))
    return found


def upward_imports(module: Module) -> list[str]:
    """Imports from a room below, or from no room at all."""
    if module.path == "__init__.py":
        return []
    return [
        f"{module.path} imports {source} {name}".strip()
        for room, source, name in of_package(module)
        if (source, name) != ("attnscope", "__version__")
        and (room not in ROOMS or ROOMS.index(room) > ROOMS.index(module.room))
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_imports(module: Module) -> list[str]:
    """Private modules and names of other rooms that are imported here."""
    return [
        f"{module.path} imports {source}{'' if any(map(is_private, parts)) else '.' + name}"
        for room, source, name in of_package(module)
        if room != module.room
        for parts in [source.split(".")]
        if any(map(is_private, [*parts, name]))
    ]


def private_members(modules: list[Module]) -> dict[str, set[str]]:
    """The private methods and attributes that the classes of each room have."""
    found: dict[str, set[str]] = {}
    for module in modules:
        members = found.setdefault(module.room, set())
        for owner in ast.walk(module.tree):
            if not isinstance(owner, ast.ClassDef):
                continue
            for node in ast.walk(owner):
                if isinstance(node, ast.FunctionDef):
                    members.add(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    members.add(node.target.id)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    members.add(node.attr)
    return {room: {name for name in names if is_private(name)} for room, names in found.items()}


def private_uses(module: Module, members: dict[str, set[str]]) -> list[str]:
    """Private members of another room's objects that are used here: `attention._x`, `model._x`."""
    elsewhere = set().union(*(names for room, names in members.items() if room != module.room))
    foreign = elsewhere - members.get(module.room, set()) - TUPLE_METHODS
    return [
        f"{module.path} uses {ast.unparse(node)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in foreign
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def shadowed(package: Path) -> list[str]:
    """Modules of a package that its `__init__` hides behind another thing of the same name."""
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    inits = [path for path in (package / "__init__.py", package / "__init__.pyi") if path.exists()]
    return [
        f"{package.name}: {alias.asname or alias.name} of {node.module}"
        for init in inits
        for node in ast.walk(ast.parse(init.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module  # `from . import room` is the room
        for alias in node.names
        if (alias.asname or alias.name) in modules and node.module.split(".")[-1] != package.name
    ]


def variant_names() -> set[str]:
    """The variants, and the kinds of them that `attention/` builds on."""
    kinds = {kind for variant in variants().values() for kind in variant.__mro__}
    return {kind.__name__ for kind in kinds if issubclass(kind, Attention)} - {"Attention"}


def asks_for_a_variant(module: Module, names: set[str]) -> list[str]:
    """Tests on the class or the name of a variant: isinstance, issubclass, type(...) is, match,
    a table by class, attention.name == "softmax".
    """
    local = {  # what the names of the package are called in this file
        alias.asname or alias.name.split(".")[0]: alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and (node.module or "" if isinstance(node, ast.ImportFrom) else "attnscope").startswith(
            "attnscope"
        )
        for alias in node.names
    }
    words = {variant.name for variant in variants().values()}

    def is_variant(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in names and ast.unparse(node.value).split(".")[0] in local
        return isinstance(node, ast.Name) and local.get(node.id) in names

    def mentions(*nodes: ast.AST | None) -> bool:
        return any(is_variant(part) for node in nodes if node for part in ast.walk(node))

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            return called in ("isinstance", "issubclass") and mentions(*node.args[1:])
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            by_word = any(isinstance(side, ast.Attribute) and side.attr == "name" for side in sides)
            constants = {
                part.value
                for side in sides
                for part in ast.walk(side)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
            return mentions(*sides) or (by_word and bool(constants & words))
        if isinstance(node, ast.Dict):
            return mentions(*node.keys)
        return isinstance(node, ast.MatchClass) and mentions(node.cls)

    return [
        f"{module.path}:{node.lineno} {ast.unparse(node)}"  # type: ignore[attr-defined]
        for node in ast.walk(module.tree)
        if asks(node)
    ]


def without(found: list[str], allowed: tuple[str, ...]) -> list[str]:
    """What was found and is not allowed; an allowance that nothing needs is found, too."""
    unused = [
        f"nothing needs the allowance {start!r} any more"
        for start in allowed
        if (SOURCE / start.split()[0]).exists() and not any(f.startswith(start) for f in found)
    ]
    return [one for one in found if not one.startswith(allowed)] + unused


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {module.room for module in modules()} - {"__init__"}
    assert len(rooms) > 10
    assert rooms - set(ROOMS) == set()


def test_imports_go_one_way() -> None:
    assert sum(len(of_package(module)) for module in modules()) > 200
    assert [line for module in modules() for line in upward_imports(module)] == []


def test_no_private_name_crosses_rooms() -> None:
    members = private_members(modules())
    found = [
        line
        for module in modules()
        for line in (*private_imports(module), *private_uses(module, members))
    ]
    assert without(found, CROSSINGS) == []


def test_only_theorems_ask_which_variant_they_have() -> None:
    names = variant_names()
    assert {"Softmax", "L2", "Normalised"} <= names
    found = [
        line
        for module in modules()
        if module.room != "attention"
        for line in asks_for_a_variant(module, names)
    ]
    assert without(found, STATE_THEOREMS) == []


def test_no_module_is_hidden_by_a_function_of_its_name(tmp_path: Path) -> None:
    packages = [path.parent for path in SOURCE.rglob("__init__.py")]
    assert len(packages) > 10
    assert [line for package in packages for line in shadowed(package)] == []
    (tmp_path / "pgd.py").write_text("")
    (tmp_path / "__init__.py").write_text("from attnscope.attacks.pgd import pgd, other")
    assert len(shadowed(tmp_path)) == 1


def asked(module: Module) -> list[str]:
    return asks_for_a_variant(module, variant_names())


def used(module: Module) -> list[str]:
    return private_uses(module, private_members([*modules(), module]))


@pytest.mark.parametrize(
    ("finds", "path", "source", "count"),
    [
        (upward_imports, "flows/a.py", "def f():\n    from attnscope.cli import app", 1),
        (upward_imports, "flows/a.py", "if TYPE_CHECKING:\n    import attnscope.nets.mlp", 1),
        (upward_imports, "flows/a.py", "from attnscope import nets, unknown, measures", 2),
        (upward_imports, "cli/a.py", "from attnscope import __version__, bounds", 0),
        (private_imports, "flows/a.py", "from attnscope.attention._heads import Heads", 1),
        (private_imports, "flows/a.py", "from attnscope.attention.sinkhorn import _relax", 1),
        (private_imports, "flows/a.py", "from attnscope.attention import _heads", 1),
        (private_imports, "attention/a.py", "from attnscope.attention._heads import Heads", 0),
        (used, "flows/a.py", "attention._check_places(x, 1)\nself.model._encoder", 2),
        (used, "flows/a.py", "row._replace(x=1)\nself._check_places()", 0),
        (asked, "flows/a.py", "from attnscope.attention.l2 import L2\nisinstance(a, int | L2)", 1),
        (asked, "flows/a.py", "from attnscope import L2 as D\nissubclass(a, (D, int))", 1),
        (asked, "flows/a.py", "import attnscope as asc\ntype(a) is asc.Softmax", 1),
        (asked, "flows/a.py", "from attnscope.attention import l2\n{l2.L2: 1}[type(a)]", 1),
        (asked, "flows/a.py", "from attnscope import L2\nmatch a:\n    case L2(): pass", 1),
        (asked, "flows/a.py", "attention.name in ('l2', 'softmax')", 1),
        (asked, "flows/a.py", "from torch import nn\nisinstance(a, nn.Linear)", 0),
        (asked, "flows/a.py", "from attnscope import L2\nL2(heads)", 0),
    ],
)
def test_the_tests_of_this_file_see_what_they_look_for(
    finds: Callable[[Module], list[str]], path: str, source: str, count: int
) -> None:
    assert len(finds(Module(path, ast.parse(source)))) == count


def test_the_library_does_not_speak_of_command_line_options() -> None:
    """Sentences for people who call functions name arguments; options are the command line's."""
    spoken = [
        f"{module.path}:{node.lineno} {node.value.strip()}"
        for module in modules()
        if module.room != "cli"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"(?:^|[\s(`])--[a-z]{2,}", node.value) and "pip install" not in node.value
    ]
    assert spoken == []
