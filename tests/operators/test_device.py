"""What a device other than the CPU asks for: few transfers to the host, tiles of its size, and
float64 at home.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import attnscope as asc
from attnscope.operators import fused, precision
from attnscope.operators._tiles import tile_sizes
from attnscope.operators.heads import of_heads
from attnscope.operators.lanczos import Lanczos
from attnscope.operators.starts import draw

READS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero"}
"""Operations whose result the host must wait for."""


class Transfers:
    """Counts what a device would have to be waited for: `Tensor.cpu` and `tolist`, scalars that
    become numbers, and sizes that depend on values.
    """

    def __init__(self) -> None:
        self.count = 0
        outer = self

        class Methods(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                outer.count += getattr(func, "__name__", "") in ("cpu", "tolist")
                return func(*args, **(kwargs or {}))

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                name = func.overloadpacket.__name__
                by_mask = name in ("index", "index_put_") and any(
                    part is not None and part.dtype == torch.bool for part in args[1]
                )
                outer.count += name in READS or by_mask
                return func(*args, **(kwargs or {}))

        self.modes = Methods(), Operations()

    def __enter__(self) -> Transfers:
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(*error)


def test_the_count_sees_what_a_device_waits_for() -> None:
    x = torch.ones(3)
    for read in (
        lambda: x.sum().item(),
        lambda: bool(x.any()),
        lambda: x.cpu().numpy(),
        lambda: x[x > 0],
        lambda: x.nonzero(),
        lambda: x.tolist(),
        lambda: torch.equal(x, x),
    ):
        with Transfers() as seen:
            read()
        assert seen.count >= 1, read


def operators(randn: Callable[..., Tensor]) -> dict[str, asc.operators.LinearOperator]:
    heads = asc.Heads(*(randn(2, 3, 6).float() for _ in range(3)), randn(2, 6, 3).float())
    mu = asc.Particles(randn(4, 9, 6).float())
    weighted = asc.Particles(randn(9, 6).float(), torch.arange(1.0, 10) / 45)
    return {
        "stack": asc.jacobian(asc.Softmax(heads), mu).flat(),
        "causal": asc.jacobian(asc.Softmax(heads, causal=True), mu).flat(),
        "weighted": asc.jacobian(asc.L2(heads.select(0)), weighted).flat(),
        "heads": of_heads(asc.Softmax(heads), mu).flat(),
        "function": asc.jacobian(torch.tanh, randn(2, 20), stack=1).flat(),
    }


@pytest.mark.parametrize("name", ["stack", "causal", "weighted", "heads", "function"])
def test_a_lanczos_step_waits_for_the_device_once(name: str, randn: Callable[..., Tensor]) -> None:
    op = operators(randn)[name]
    lanczos = Lanczos(op, draw(op, 0).vectors)
    for number in range(5):
        if number == 3 and op.stack[0] > 1:
            done = lanczos.active.copy()
            done[1:] = False
            lanczos.freeze(done)
        with Transfers() as seen:
            lanczos.step()
        assert seen.count == 1, f"step {number}"


def test_tiles_under_a_mask_are_planned_once(randn: Callable[..., Tensor]) -> None:
    q, k, v = (randn(1, 2, 9, 4) for _ in range(3))
    ends = torch.stack([torch.zeros(9), torch.arange(1.0, 10)], -1).long()[None, None]
    tiled = fused.Tiled(q, k, v, None, None, ends, fused.Form(0.5))
    with Transfers() as seen:
        tiled.jvp(*tiled.value(), fused.Inputs(q, k, v))
    assert seen.count == 0


def test_tiles_are_larger_where_each_operation_is_a_launch() -> None:
    here, there = (tile_sizes(torch.device(kind)) for kind in ("cpu", "cuda"))
    assert there.entries > here.entries
    assert there.rows >= here.rows
    assert there.narrow >= here.narrow


def test_the_result_says_where_its_last_product_was_made(randn: Callable[..., Tensor]) -> None:
    attention = asc.Softmax(asc.Heads.from_matrices(randn(3, 3).float(), randn(3, 3).float()))
    op = asc.jacobian(attention, asc.Particles(randn(5, 3).float()))
    assert asc.spectral_norm(op).finish == "float64 on cpu"
    alone = asc.jacobian(torch.tanh, randn(4).float())  # nobody knows its float64 form
    assert asc.spectral_norm(alone).finish == "float32 on cpu"


def test_float64_goes_to_the_cpu_from_a_device_that_has_none() -> None:
    assert precision.home(torch.device("mps")) == torch.device("cpu")
    assert precision.home(torch.device("cuda", 1)) == torch.device("cuda", 1)
    moved = list[object]()

    class Elsewhere:
        def to(self, target: object) -> Elsewhere:
            moved.append(target)
            return self

    precision.widened(Elsewhere(), torch.device("mps"))
    precision.widened(Elsewhere(), torch.device("cuda"))
    assert moved == [torch.device("cpu"), torch.float64, torch.float64]
