"""What else computes the largest singular value of this Jacobian: minilm layer 3, n = 64 and 256.

Each peer runs in a process of its own, so that a peak of memory belongs to one of them:
`python -m benchmarks.peers NAME N TRUTH` prints its value, CPU seconds and peak in MB. Peers from
other packages need `pip install 'attnscope[bench]'`; those that are missing are named and left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import lobpcg, svds
from torch import Tensor

from attnscope import Particles, Softmax, jacobian, load, spectral_norm
from benchmarks.baselines import eager, p2, p2b, power_method
from benchmarks.smoothness import pinned_text
from benchmarks.timing import forget_peak, peak_memory

OURS = ("ours", "ours with a bracket of 1e-6", "ours in float64 with a bracket of 1e-6")
BEST_PEER = "scipy svds on autograd products, float64"
LENGTHS = (64, 256)
SHORTEST = 4
"""For peers that build the whole Jacobian: at n = 64 it has 24,576 rows and columns, and its SVD
takes hours.
"""


class Peer(NamedTuple):
    """`run(attention, x, truth)` gives the value; `needs` is the package it comes from."""

    run: Callable[[Softmax, Tensor, float], float]
    needs: str | None = None
    lengths: tuple[int, ...] = LENGTHS

    @property
    def here(self) -> bool:
        with contextlib.suppress(ModuleNotFoundError):  # the parent package may be missing
            return self.needs is None or importlib.util.find_spec(self.needs) is not None
        return False


def main() -> dict[str, Any]:
    """Times over ours in float32 without a bracket; errors against a bracket of 1e-9."""
    found: dict[str, Any] = {}
    for name, peer in PEERS.items():
        if not peer.here:
            print(f"LEFT OUT: {name}: no module {peer.needs}. pip install 'attnscope[bench]'.")
    for n in (SHORTEST, *LENGTHS):
        attention, x = _problem(n)
        double = jacobian(attention.to(torch.float64), Particles(x.double()))
        truth = float(spectral_norm(double, tol=1e-10, failure_probability=1e-6).lower)
        able = [name for name, peer in PEERS.items() if peer.here and n in peer.lengths]
        made = {name: row for name in able if (row := _alone(name, n, truth)) is not None}
        for name, row in made.items():
            found[f"{name}, minilm layer 3, n = {n}: CPU time in ours"] = {
                "value": row["seconds"] / made["ours"]["seconds"],
                "error": abs(row["value"] / truth - 1),
                "MB": row["MB"],
                "seconds": row["seconds"],
            }
    ratio = made[BEST_PEER]["seconds"] / made[OURS[2]]["seconds"]
    what = "float64 sigma with a 1e-6 bracket vs scipy svds on autograd products, n = 256"
    return found | {what: {"ratio": ratio, "must": 2.5, "stretch": 4.0}}


def _alone(name: str, n: int, truth: float) -> dict[str, float] | None:
    """What a process of its own says; None for another's that fails, as for want of memory."""
    command = [sys.executable, "-m", "benchmarks.peers", name, str(n), repr(truth)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and name not in (*OURS, BEST_PEER):
        why = done.stderr.strip().splitlines()[-1:]
        print(f"LEFT OUT: {name} at n = {n} fails: {' '.join(why)[:200]}", file=sys.stderr)
        return None
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def _problem(n: int) -> tuple[Softmax, Tensor]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = load("minilm")
    return model.attention(3), model.tokens(model.encode(pinned_text())[:n], 3)


def _solver(dtype: torch.dtype, chance: float | None) -> Callable[..., float]:
    def run(attention: Softmax, x: Tensor, truth: float) -> float:
        op = jacobian(attention.to(dtype), Particles(x.to(dtype)))
        return float(spectral_norm(op, tol=1e-6, failure_probability=chance).lower)

    return run


def _power(attention: Softmax, x: Tensor, truth: float) -> float:
    pair = p2(eager(attention), x)
    return power_method(pair, tuple(x.shape), x.dtype, truth, 1e-6)[0]


def _svds_autograd(attention: Softmax, x: Tensor, truth: float) -> float:
    x = x.double()
    forward, backward = p2b(eager(attention.to(torch.float64)), x)

    def on_arrays(product: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda u: product(torch.as_tensor(u).reshape(x.shape)).reshape(-1).numpy()

    size = (x.numel(), x.numel())
    op = ScipyOperator(
        size, matvec=on_arrays(forward), rmatvec=on_arrays(backward), dtype="float64"
    )
    return float(svds(op, k=1, tol=1e-6, return_singular_vectors=False, random_state=0)[0])


def _svds_ours(attention: Softmax, x: Tensor, truth: float) -> float:
    op = jacobian(attention.to(torch.float64), Particles(x.double())).to_scipy()
    return float(svds(op, k=1, tol=1e-6, return_singular_vectors=False, random_state=0)[0])


def _lobpcg_ours(attention: Softmax, x: Tensor, truth: float) -> float:
    op = jacobian(attention.to(torch.float64), Particles(x.double())).to_scipy()
    start = np.random.default_rng(0).standard_normal((op.shape[1], 4))
    squared = ScipyOperator(
        (op.shape[1],) * 2, matvec=lambda u: op.rmatvec(op.matvec(u)), dtype="float64"
    )
    return float(lobpcg(squared, start, tol=1e-4, maxiter=100)[0].max() ** 0.5)


def _randomized_ours(attention: Softmax, x: Tensor, truth: float) -> float:
    """A randomized SVD with ten vectors and four rounds of subspace iteration."""
    op = jacobian(attention, Particles(x))
    q = torch.randn(10, *x.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        images = torch.stack([op.mv(one) for one in q]).flatten(1)
        basis = torch.linalg.qr(images.mT)[0].mT.reshape(q.shape)
        q = torch.stack([op.rmv(one) for one in basis])
    return float(torch.linalg.matrix_norm(q.flatten(1), 2))


class _Eager(torch.nn.Module):
    """Eager attention as a module on batches, as the other packages want it."""

    def __init__(self, attention: Softmax) -> None:
        super().__init__()
        self.function = eager(attention)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _eigendistortion(attention: Softmax, x: Tensor) -> Any:
    from plenoptic import Eigendistortion

    torch.manual_seed(0)  # it draws its starts from the global generator
    return Eigendistortion(x[None, None], _Eager(attention).eval())


def _plenoptic_power(attention: Softmax, x: Tensor, truth: float) -> float:
    """Its search for the largest value alone: `synthesize` goes on to look for the smallest."""
    least = 1e-8 * truth**2 if np.isfinite(truth) else np.inf  # of the change of sigma^2
    with contextlib.redirect_stdout(sys.stderr):
        found = _eigendistortion(attention, x)._synthesize_power(1, 0.0, least, 1000)[0]
    return 1.0 if found is None else float(found) ** 0.5


def _plenoptic_randomized(attention: Softmax, x: Tensor, truth: float) -> float:
    """With the oversampling and the two power iterations that it recommends."""
    made = _eigendistortion(attention, x)
    made.synthesize(method="randomized_svd", k=1, p=5, q=2)
    return float(made.eigenvalues.max()) ** 0.5


def _torchlip(attention: Softmax, x: Tensor, truth: float) -> float:
    """The whole Jacobian by reverse mode, then its SVD."""
    from deel.torchlip.utils.evaluate_lip_const import evaluate_lip_const

    return float(
        evaluate_lip_const(_Eager(attention), x[None, :SHORTEST], evaluation_type="jacobian_norm")
    )


PEERS: dict[str, Peer] = {
    OURS[0]: Peer(_solver(torch.float32, None), lengths=(SHORTEST, *LENGTHS)),
    OURS[1]: Peer(_solver(torch.float32, 1e-6)),
    OURS[2]: Peer(_solver(torch.float64, 1e-6)),
    "power method on torch.func products (stopped by the truth)": Peer(_power),
    BEST_PEER: Peer(_svds_autograd),
    "scipy svds on our operator, float64": Peer(_svds_ours),
    "scipy lobpcg on our operator, float64": Peer(_lobpcg_ours),
    "randomized SVD on our operator": Peer(_randomized_ours),
    "plenoptic's power method": Peer(_plenoptic_power, "plenoptic"),
    "plenoptic's randomized SVD": Peer(_plenoptic_randomized, "plenoptic"),
    "deel-torchlip's jacobian_norm": Peer(_torchlip, "deel.torchlip", (SHORTEST,)),
}


if __name__ == "__main__":
    peer, length, known = PEERS[sys.argv[1]], int(sys.argv[2]), float(sys.argv[3])
    given = _problem(length)
    peer.run(given[0], given[1][:8], float("inf"))  # loads what it needs
    forget_peak()
    held, begun = peak_memory(), time.process_time()
    value = peer.run(*given, known)
    taken = time.process_time() - begun
    print(json.dumps({"value": value, "seconds": taken, "MB": (peak_memory() - held) / 1e6}))
