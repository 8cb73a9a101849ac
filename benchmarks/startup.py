"""What a user waits for before anything is computed, in imports of torch; and a whole run of
`measure` against the code before.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import cpu_seconds_of

ROOT = Path(__file__).parents[1]
BEFORE = "57f5e0a"
NAMES = "import attnscope as asc; asc.load; asc.Softmax; asc.spectral_norm"
HELP = "from attnscope.cli import main; main(['--help'])"
ASKED = "--lengths 8:129:24 --samples 4 --certify 1e-6 --tol 1e-6 --text python-docs"
"""Text and tolerance are told: their defaults have changed since."""
DEMO = (
    "import sys; from attnscope.cli import main;"
    f" main('measure minilm {ASKED} --threads 1'.split() + sys.argv[1:])"
)


def main() -> dict[str, Any]:
    """CPU times of processes, medians of five."""

    def taken(code: str) -> float:
        return statistics.median(cpu_seconds_of(sys.executable, "-c", code) for _ in range(5))

    torch = taken("import torch")
    return {
        "import attnscope with load, Softmax, spectral_norm / import torch": {
            "value": taken(NAMES) / torch, "at most": 1.35, "stretch": 1.2,
        },
        "attnscope --help / import torch": {
            "value": taken(HELP) / torch, "at most": 0.4, "stretch": 0.2,
        },
        f"measure minilm {ASKED} / the same at {BEFORE}": {
            "value": _against_before(), "at most": 0.65, "stretch": 0.5,
        },
    }  # fmt: skip


def _against_before() -> float:
    """CPU time of the command now over that of the commit before, medians of three in turn; each
    run has a folder of its own and no rows of earlier ones, which would be taken up.
    """
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "before")
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(old), BEFORE],
            check=True,
            capture_output=True,
        )
        try:
            times: dict[Path, list[float]] = {ROOT: [], old: []}
            fresh = {ROOT: ("--cache", "off"), old: ()}  # there was no cache before
            for turn in range(3):
                for place, found in times.items():
                    here = os.environ | {"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
                    out = str(Path(folder, f"{place.name}-{turn}"))
                    command = (sys.executable, "-c", DEMO, "--out", out, *fresh[place])
                    found.append(cpu_seconds_of(*command, env=here, cwd=folder))
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(old)]
            subprocess.run(remove, check=True, capture_output=True)
    return statistics.median(times[ROOT]) / statistics.median(times[old])
