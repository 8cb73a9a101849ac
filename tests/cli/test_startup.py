"""What is loaded before anything is computed: help without torch, the main names without what only
transport and flows need.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(code: str) -> set[str]:
    """What a process has imported when the code ends, however it ends."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('|'.join(sys.modules), file=sys.stderr))\n" + code
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split("|"))


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_help_needs_no_torch(asked: str) -> None:
    found = modules_after(f"from attnscope.cli import main; main([{asked!r}])")
    assert "attnscope.cli" in found
    assert not found & {"torch", "numpy", "scipy", "ot", "attnscope.studies"}


def test_the_main_names_need_no_transport() -> None:
    found = modules_after("import attnscope as asc; asc.load; asc.Softmax; asc.spectral_norm")
    assert "attnscope.operators.spectrum" in found
    assert not found & {"scipy", "ot", "sklearn", "matplotlib", "transformers", "pandas"}


def test_an_interrupt_while_modules_are_imported_ends_the_process() -> None:
    """Whatever the module that is being imported makes of exceptions; later it is the command's."""
    program = (
        "import os, signal\n"
        "from attnscope.cli._lazy import _left_at_once\n"
        "with _left_at_once(): pass\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "with _left_at_once():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "    except BaseException: os._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
