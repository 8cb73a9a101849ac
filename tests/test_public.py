"""The names that users may rely on, and what it costs to ask for them."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import attnscope as asc

CONTRACT = [
    *("Particles", "Gaussian", "Heads", "variants"),
    *("Softmax", "L2", "Sinkhorn", "Sigmoid", "Exponential", "Linear"),
    *("jacobian", "spectral_norm", "singular_values"),
    *("wasserstein", "conditional_wasserstein", "bures"),
    *("flow", "residual", "load", "measure", "register_attention", "certify"),
]

ROOMS = sorted(
    info.name for info in pkgutil.iter_modules(asc.__path__) if not info.name.startswith("_")
)


@pytest.mark.parametrize("name", CONTRACT)
def test_every_name_of_the_contract_is_there(name: str) -> None:
    assert name in asc.__all__
    assert callable(getattr(asc, name))


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("cli",)])
def test_every_room_is_reachable_after_import(room: str) -> None:
    """`import attnscope.operators.lanczos as l` works: no function shadows a package."""
    assert getattr(asc, room) is importlib.import_module(f"attnscope.{room}")


def test_every_module_can_be_reached_by_its_dotted_name() -> None:
    """No name that a package exports hides one of its own modules."""
    hidden = []
    for info in pkgutil.walk_packages(asc.__path__, "attnscope."):
        parent, _, name = info.name.rpartition(".")
        if not name.startswith("_"):
            module = importlib.import_module(info.name)
            if getattr(importlib.import_module(parent), name) is not module:
                hidden.append(info.name)
    assert hidden == []


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, attnscope; print('torch' in sys.modules, 'scipy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.stdout.split() == ["False", "False"], shown.stderr
