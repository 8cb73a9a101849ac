"""Peak memory of `attention(x, mu)` at full size: n = 100,000 tokens in the plane within 2 GB,
Sinkhorn n = 20,000 within 4 GB.

Each variant runs in a process of its own, so that a peak belongs to one of them.
"""

from __future__ import annotations

import json

from attnscope import variants
from benchmarks.timing import last_line_of

LIMITS = {"sinkhorn": (20_000, 4.0)}
USUAL_LIMIT = (100_000, 2.0)

SCRIPT = """
import json, sys, time
import torch
from attnscope import Heads, Particles, variants
from benchmarks.timing import peak_memory

name, n, causal = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "causal"
generator = torch.Generator().manual_seed(0)
a = torch.tensor([[0.5, 0.2], [-0.1, 0.3]], dtype=torch.float64)
heads = Heads.from_matrices(a, torch.eye(2, dtype=torch.float64))
attention = variants()[name](heads, causal=causal)
mu = Particles(torch.randn(n, 2, dtype=torch.float64, generator=generator))
start = time.perf_counter()
out = attention(mu.x, mu)
seconds = time.perf_counter() - start
assert out.shape == mu.x.shape and torch.isfinite(out).all()
print(json.dumps({"gigabytes": round(peak_memory() / 1e9, 2), "seconds": round(seconds, 1)}))
"""

SEARCH = """
import torch
from attnscope import Heads, Particles, Softmax, jacobian, spectral_norm
from benchmarks.timing import peak_memory
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
q, k, v = (0.02 * torch.randn(12, 64, 768, generator=g) for _ in range(3))
attention = Softmax(Heads(q, k, v, 0.02 * torch.randn(12, 768, 64, generator=g)), causal=True)
spectral_norm(jacobian(attention, Particles(torch.randn(8, 768, generator=g))), max_pairs=3)
before = peak_memory()
x = torch.randn(4096, 768, generator=g)
found = spectral_norm(jacobian(attention, Particles(x)), tol=1e-15, max_pairs=30)
assert found.pairs == 30
print((peak_memory() - before) / (x.numel() * 4))
"""


def main() -> dict[str, dict[str, float]]:
    """Every variant at full size, and softmax under a mask: peak memory in gigabytes."""
    found = {}
    for name, causal in [*((name, False) for name in variants()), ("softmax", True)]:
        n, limit = LIMITS.get(name, USUAL_LIMIT)
        row = json.loads(last_line_of(SCRIPT, name, str(n), "causal" if causal else "whole"))
        what = f"peak memory of {'causal ' * causal}{name} attention, n = {n:,}, d = 2, in GB"
        found[what] = {"value": row["gigabytes"], "at most": limit, "seconds": row["seconds"]}
    what = "peak memory of spectral_norm, n = 4096, 12 heads, d = 768, 30 pairs, in sizes of X"
    sizes = float(last_line_of(SEARCH))
    return found | {what: {"value": sizes, "at most": 70.0, "stretch": 50.0}}
