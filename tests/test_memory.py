"""`attention(x, mu)` never forms an n x n matrix: peak memory in a process of its own, at a size
where such a matrix would show.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope import variants

TOKENS = 7_000
WHOLE_MATRIX = TOKENS**2 * 8 / 2**20
"""Megabytes of one n x n matrix in float64; an attention that forms one needs several at once."""

SCRIPT = """
import json, re, sys
import torch
from attnscope import Heads, Particles, variants

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 2**10

def cloud(n):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(n, dtype=torch.float64, generator=generator)
    positions = drawn if kind == "scattered" else None
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return Particles(x, positions=positions)

torch.set_num_threads(1)
kind, n, names, grown = sys.argv[1], int(sys.argv[2]), sys.argv[3:], {}
matrix = torch.tensor([[5e-4, 1e-4], [-1e-4, 5e-4]], dtype=torch.float64)
for name in names:
    heads = Heads.from_matrices(matrix, torch.eye(2, dtype=torch.float64))
    attention = variants()[name](heads, causal=kind != "whole")
    small, mu = cloud(100), cloud(n)
    attention(small.x, small)
    before = peak()
    assert torch.isfinite(attention(mu.x, mu)).all()
    grown[name] = peak() - before
print(json.dumps(grown))
"""


def growth(kind: str, *names: str) -> dict[str, float]:
    """Megabytes by which each variant raised the peak of one process while n tokens in the plane
    attended to each other.
    """
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(TOKENS), *names], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-1000:]
    result: dict[str, float] = json.loads(run.stdout)
    return result


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("whole", tuple(variants())),
        ("in order", ("softmax", "sigmoid")),
        ("scattered", ("softmax", "l2")),
    ],
)
def test_attention_never_holds_the_whole_coupling(kind: str, names: tuple[str, ...]) -> None:
    assert {name: size for name, size in growth(kind, *names).items() if size > WHOLE_MATRIX} == {}
