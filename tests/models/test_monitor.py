"""A monitor tells lower bounds, and training does not notice it."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from networks import GPT2
from torch import Tensor, nn

import attnscope as asc
from attnscope.models import lightning_callback, load, trainer_callback

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2])
EXAMPLE = runpy.run_path(
    str(Path(__file__).parents[2] / "examples/train_gpt2_on_alice.py"), run_name="example"
)


def network(scale: float = 0.4, dtype: torch.dtype = torch.float64) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**GPT2, attn_implementation="eager")
        ).to(dtype)
        for parameter in module.parameters():
            parameter.data = scale * torch.randn_like(parameter)
    return module


def dense(module: nn.Module, layer: int) -> float:
    model = load(module.eval())
    x = model.tokens(IDS, layer).detach()
    matrix = torch.autograd.functional.jacobian(model.function(layer), x)
    return float(torch.linalg.svdvals(matrix.reshape(x.numel(), x.numel()))[0])


def test_reports_are_lower_bounds_that_warm_starts_bring_near() -> None:
    module = network()
    monitor = asc.Monitor(module, IDS, [0, 2], pairs=2)
    first, *_, last = (monitor.report(step) for step in range(4))
    for layer in (0, 2):
        truth = dense(module, layer)
        name = f"layer{layer}/sigma"
        assert first[name] <= truth * (1 + 1e-10)
        assert 0.99 * truth <= last[name] <= truth * (1 + 1e-10)
    assert set(last) == {"step", "seconds"} | {
        f"layer{k}/{name}"
        for k in (0, 2)
        for name in ("sigma", "largest_score", "largest_column_sum", "entropy")
    }
    assert all(type(value) is float for value in last.values())
    heard = load(module.eval()).tap(2, IDS)
    assert last["layer2/largest_score"] == pytest.approx(float(heard.largest_score.max()))
    assert last["layer2/largest_column_sum"] == pytest.approx(float(heard.column_sums.max()))
    assert last["layer2/entropy"] == pytest.approx(float(heard.entropy.mean()))
    assert monitor.history[-1] is last


def test_a_monitor_sees_the_weights_of_now() -> None:
    module = network()
    monitor = asc.Monitor(module, IDS, [1], pairs=20)
    monitor.report()
    with torch.no_grad():
        module.transformer.h[1].attn.c_proj.weight.mul_(3)
    assert monitor.report()["layer1/sigma"] == pytest.approx(dense(module, 1), rel=1e-6)


def test_training_is_the_same_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    """Dropout, its random numbers, gradients and modes are left alone."""
    ids, count = EXAMPLE["letters_of"]("the cat sat on the mat, and so did the hat. " * 8)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8}
    plain, watched = (EXAMPLE["network"](count, **sizes) for _ in range(2))
    monitor = asc.Monitor(watched.train(), ids[:6], every=2)
    watched.transformer.h[0].eval()
    plain.transformer.h[0].eval()
    random = torch.random.get_rng_state()
    losses = EXAMPLE["train"](plain, ids, 3)[0]
    torch.random.set_rng_state(random)
    assert EXAMPLE["train"](watched, ids, 3, monitor)[0] == losses
    assert [report["step"] for report in monitor.history] == [0, 2]
    assert "step    2  loss" in capsys.readouterr().out
    assert watched.training
    assert all(parameter.requires_grad for parameter in watched.parameters())
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


def test_blocks_and_networks_of_ones_own() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 12, batch_first=True) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = Own().double(), torch.randn(4, 8).double()
    with pytest.warns(asc.ModelNotice, match="not known"):
        monitor = asc.Monitor(module, x, part="block", pairs=30)
    report = monitor.report()
    assert set(report) == {"step", "seconds", "layer0/sigma", "layer1/sigma"}
    assert report["layer0/sigma"] > 0


def test_the_trainers_of_transformers_and_lightning_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, float]] = []
    monitor = asc.Monitor(network(), IDS, [0], every=2, pairs=1)
    callback = trainer_callback(monitor, told.append)
    state = transformers.TrainerState()
    callback.on_train_begin(None, state, None)
    for state.global_step in (1, 2):
        callback.on_step_end(None, state, None)
    assert [entry["step"] for entry in state.log_history] == [0, 2]
    assert [report["step"] for report in told] == [0.0, 2.0]

    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match="pip install lightning"):
        lightning_callback(monitor)
    for name in ("lightning", "lightning.pytorch"):
        stand_in = types.ModuleType(name)
        stand_in.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
        stand_in.Callback = object  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, stand_in)
    logged: list[dict[str, float]] = []
    trainer = types.SimpleNamespace(global_step=4)
    part = types.SimpleNamespace(log_dict=logged.append)
    lightning_callback(monitor).on_train_batch_end(trainer, part, None, None, 0)
    assert set(logged[0]) >= {"layer0/sigma", "seconds"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"pairs": True}, "pairs must be a whole number"),
        ({"layers": [7]}, "layer must be a whole number from 0 to 2"),
        ({"layers": []}, "at least one layer"),
        ({"part": "norm"}, "part must be one of"),
        ({"source": torch.stack([IDS, IDS])}, "watches one sequence"),
    ],
)
def test_mistakes_are_sentences(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        asc.Monitor(network(), **({"source": IDS} | options))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(TypeError, match="module must be of class Module, got float 1"):
        asc.Monitor(1.5, IDS)  # type: ignore[arg-type]
