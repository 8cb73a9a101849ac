"""Training: what the losses are, that a seed decides everything, and that stopping loses
nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from attnscope import nets
from attnscope.certification import certify
from attnscope.data.pictures import Images
from attnscope.training import LOSSES, Progress, Recipe, Training, fit, graded, look
from attnscope.training import fit as fit_function
from attnscope.training.training import augmented, schedule

CONFIG = nets.Config.vit((1, 4, 4), 3, 2, dim=6, heads=2, head_dim=3, value_dim=3, hidden=8)


def patterns(count: int = 60, seed: int = 0) -> Images:
    """Three classes: which row of the image is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = 0.4 * torch.rand(count, 1, 4, 4, generator=generator)
    pixels[torch.arange(count), 0, labels] += 0.6
    return Images(pixels, labels, ("first", "second", "third"), "patterns")


def recipe(**parts: Any) -> Recipe:
    return Recipe(**{"config": CONFIG, "steps": 12, "batch": 16, "rate": 0.02, "eps": 0.1, **parts})


def weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def network(seed: int = 3) -> nets.Transformer:
    return nets.Transformer(CONFIG, seed).double()


def test_the_gradient_loss_lowers_the_true_logit_by_eps_times_the_slope_of_the_margin() -> None:
    data, net = patterns(9), network()
    x, eps = data.pixels.double(), 0.2
    found = graded("gradient", net, x, data.labels, eps)
    logits = net(x)
    lowered = logits.clone()
    for i, label in enumerate(data.labels.tolist()):
        others = [j for j in range(3) if j != label]
        rival = max(others, key=lambda j, i=i: float(logits[i, j].detach()))
        dense = torch.autograd.functional.jacobian(net, x[i])
        slope = (dense[label] - dense[rival]).norm()
        assert torch.allclose(found.lowered[i], eps * slope)
        assert torch.allclose(found.margins[i], logits[i, label] - logits[i, rival])
        lowered[i, label] = lowered[i, label] - eps * slope
    assert torch.allclose(
        found.loss, torch.nn.functional.cross_entropy(lowered, data.labels), atol=1e-6
    )


def test_the_certified_loss_lowers_the_true_logit_by_a_proved_decrease() -> None:
    data, net = patterns(3), network()
    x, eps = data.pixels.double(), 0.05
    margin, gradient, certified = (
        float(graded(name, net, x, data.labels, eps).loss.detach()) for name in LOSSES
    )
    assert margin < gradient < certified < gradient + 1, "each loss lowers the true logit further"
    found = graded("certified", net, x, data.labels, eps)
    found.loss.backward()
    assert all(
        torch.isfinite(part.grad).all() for part in net.parameters() if part.grad is not None
    )
    assert net.attentions[0].query.grad.abs().max() > 0


def test_what_the_certified_loss_takes_is_proved() -> None:
    """Its radii come from budgets of tokens: the decrease is at least what any attack finds."""
    data, net = patterns(6), network()
    x, eps = data.pixels.double(), 0.3
    kept = graded("gradient", net, x, data.labels, eps)
    taken = _taken(net, x, data.labels, eps)
    assert (taken > kept.lowered).all()
    generator = torch.Generator().manual_seed(0)
    before = kept.margins
    for _ in range(200):
        away = torch.randn(x.shape, dtype=torch.float64, generator=generator).flatten(1)
        moved = x + eps * (away / away.norm(dim=1, keepdim=True)).reshape(x.shape)
        logits = net(moved)
        rival = net(x).scatter(1, data.labels[:, None], -torch.inf).argmax(1)
        rows = torch.arange(len(x))
        after = logits[rows, data.labels] - logits[rows, rival]
        assert (before - after <= taken).all()


def _taken(net: nets.Transformer, x: torch.Tensor, labels: torch.Tensor, eps: float) -> Any:
    """Image by image, from the loss of a batch of one: log(1 + sum exp(l_j - l_y + taken))."""
    found = []
    for one, label in zip(x, labels, strict=True):
        logits = net(one[None]).detach()[0]
        loss = graded("certified", net, one[None], label[None], eps).loss.detach()
        others = (logits - logits[label]).exp().sum() - 1
        found.append(((loss.exp() - 1) / others).log())
    return torch.stack(found)


@pytest.mark.parametrize("variant", ["l2", "sigmoid"])
def test_the_certified_loss_takes_other_variants(variant: str) -> None:
    data, net = patterns(3), nets.Transformer(replace(CONFIG, attention=variant)).double()
    kept, found = (
        graded(name, net, data.pixels.double(), data.labels, 0.05) for name in LOSSES[1:]
    )
    assert kept.loss < found.loss < kept.loss + 1
    found.loss.backward()
    assert net.attentions[0].key.grad.isfinite().all()


def test_earned_margins_take_no_more_than_there_is() -> None:
    data, net = patterns(12), network()
    x = data.pixels.double()
    fixed, earned = (
        graded("gradient", net, x, data.labels, 0.2, margins) for margins in ("fixed", "earned")
    )
    plain = graded("margin", net, x, data.labels, 0.2)
    assert plain.loss <= earned.loss <= fixed.loss
    misread = fixed.margins < 0
    assert misread.any()
    some = x[misread], data.labels[misread]
    assert torch.isclose(
        graded("gradient", net, *some, 0.2, "earned").loss, graded("margin", net, *some, 0.2).loss
    )


def test_the_radius_waits_and_then_rises() -> None:
    plan = recipe(delay=0.25, ramp=0.5, eps=0.2)
    assert [plan.radius(part) for part in (0.0, 0.24, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(
        [0, 0, 0, 0.1, 0.2, 0.2]
    )
    assert recipe(eps=0.2).radius(0.0) == 0.2
    assert recipe(eps=0.2, delay=0.5).radius(0.5) == 0.2


def test_the_control_mixes_tokens_by_place_and_never_by_content() -> None:
    data = patterns()
    plan = recipe(steps=4).control()
    training = Training(plan, data.pixels, data.labels)
    before = weights(training.network)
    while training.progress < 1:
        training.advance()
    after = weights(training.network)
    assert training.network.attention_norms()[0].tolist() == [0, 0]
    assert all((after[f"layers.1.{part}"] == 0).all() for part in ("query", "key", "query_bias"))
    assert not torch.equal(before["layers.1.position_bias"], after["layers.1.position_bias"])
    x = data.pixels[:1].clone().requires_grad_()
    tokens = training.network.layers[1](training.network.layers[0](x))
    (moved,) = torch.autograd.grad(tokens[0, 0].square().sum(), x)
    assert (moved.reshape(2, 2, 2, 2)[1, :, 1] != 0).any(), "tokens meet"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_seed_and_a_number_of_steps_decide_the_network(loss: str) -> None:
    data = patterns()
    runs = []
    for seed in (5, 5, 6):
        training = Training(
            recipe(loss=loss, seed=seed, steps=3, shift=1, flip=True), data.pixels, data.labels
        )
        while training.progress < 1:
            training.advance()
        runs.append(weights(training.network))
    assert equal(runs[0], runs[1])
    assert not equal(runs[0], runs[2])


def test_training_learns_and_keeps_content_attention_alive(tmp_path: Path) -> None:
    looked = fit(recipe(steps=60, floor=0.35, cap=0.36), patterns(), patterns(30, seed=1), tmp_path)
    assert looked.clean > 0.9
    assert looked.certified is not None
    assert 0.5 < looked.certified <= looked.clean
    assert min(min(layer) for layer in looked.content_norms) >= 0.35 * (1 - 1e-5)
    saved = nets.load(tmp_path)
    assert look(saved, patterns(30, seed=1), 0.1) == looked
    notes = nets.describe(tmp_path)["notes"]
    assert notes["finished"] is True
    assert notes["steps_done"] == 60
    assert notes["data"] == "patterns"
    assert not (tmp_path / "training.safetensors").exists()


def test_the_certified_share_is_that_of_certify(tmp_path: Path) -> None:
    looked = fit(recipe(steps=40), patterns(), patterns(12, seed=1), tmp_path)
    images = patterns(12, seed=1)
    proved = certify(
        nets.load(tmp_path).double().eval(), images.pixels.double(), 0.1, images.labels
    )
    assert looked.certified == sum(one.verdict for one in proved) / 12


def test_a_variant_without_a_bound_is_trained_and_says_so(tmp_path: Path) -> None:
    config = replace(CONFIG, attention="linear")
    assert fit(recipe(config=config, steps=2), patterns(), patterns(3), tmp_path).certified is None


def stopping_after(steps: int) -> Any:
    def watch(progress: Progress) -> bool:
        assert progress.seen is not None
        return progress.seen.step < steps

    return watch


def test_resuming_equals_never_having_stopped(tmp_path: Path) -> None:
    data, held_out = patterns(), patterns(6, seed=1)
    fit(recipe(steps=45), data, held_out, tmp_path / "whole")
    fit(recipe(steps=45), data, held_out, tmp_path / "parts", watch=stopping_after(25))
    assert nets.describe(tmp_path / "parts")["notes"]["finished"] is False
    fit(recipe(steps=45), data, held_out, tmp_path / "parts", resume=True)
    assert equal(weights(nets.load(tmp_path / "whole")), weights(nets.load(tmp_path / "parts")))

    def steps(folder: str) -> list[int]:
        lines = (tmp_path / folder / "log.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)]

    assert steps("whole") == steps("parts") == [20, 40]


def test_an_interrupt_at_any_moment_keeps_the_checkpoint(tmp_path: Path) -> None:
    def watch(progress: Progress) -> bool:
        assert progress.seen is not None
        if progress.seen.step == 7:
            raise KeyboardInterrupt
        return True

    data, held_out = patterns(), patterns(6, seed=1)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(), data, held_out, tmp_path / "parts", watch=watch)
    fit(recipe(), data, held_out, tmp_path / "parts", resume=True)
    fit(recipe(), data, held_out, tmp_path / "whole")
    assert equal(weights(nets.load(tmp_path / "whole")), weights(nets.load(tmp_path / "parts")))


def stopped(folder: Path) -> Path:
    fit(recipe(), patterns(), patterns(3), folder, watch=stopping_after(4))
    return folder / "training.safetensors"


def rewritten(path: Path, change: Any) -> None:
    with safe_open(path, "pt") as stored:
        about = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    change(tensors, about)
    path.write_bytes(safetensors.torch.save(tensors, about))


def test_a_broken_checkpoint_is_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    whole = path.read_bytes()
    for change, says in (
        (lambda tensors, about: about.update(version="0"), "version '0'"),
        (lambda tensors, about: tensors["exp_avg.layers.0.position"].fill_(float("nan")), "NaN"),
    ):
        path.write_bytes(whole)
        rewritten(path, change)
        with pytest.raises(ValueError, match=says):
            fit(recipe(), patterns(), patterns(3), tmp_path, resume=True)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut off"):
        fit(recipe(), patterns(), patterns(3), tmp_path, resume=True)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="another rate"):
        fit(recipe(rate=0.01), patterns(), patterns(3), tmp_path, resume=True)
    with pytest.raises(ValueError, match="no training to resume"):
        fit_function(recipe(), patterns(), patterns(3), tmp_path / "elsewhere", resume=True)


def test_minutes_are_a_budget_too() -> None:
    data = patterns()
    training = Training(recipe(steps=None, minutes=0.005), data.pixels, data.labels)
    while training.progress < 1:
        training.advance()
    assert training.seconds >= 0.3
    assert training.step > 1


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [schedule(part / 100) for part in range(101)]
    top = rates.index(max(rates))
    assert 0 < top <= 5
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_shifts_move_images_and_repeat_their_edge(generator: torch.Generator) -> None:
    x = torch.rand(4, 1, 5, 5, generator=generator)
    moved = augmented(x, False, 1, generator)
    padded = torch.nn.functional.pad(x, [1] * 4, mode="replicate")
    places = [
        (i, j)
        for i in range(3)
        for j in range(3)
        if torch.equal(moved, padded[..., i : i + 5, j : j + 5])
    ]
    assert len(places) == 1
    flipped = augmented(x, True, 0, generator)
    assert all(
        torch.equal(one, two) or torch.equal(one, two.flip(-1))
        for one, two in zip(flipped, x, strict=True)
    )


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"loss": "hinge"}, "margin, gradient, certified"),
        ({"steps": None}, "steps or minutes"),
        ({"minutes": 1.0}, "steps or minutes"),
        ({"eps": 0.0}, "eps"),
        ({"margins": "wide"}, "fixed, earned"),
        ({"delay": 0.7, "ramp": 0.4}, "add up to more than 1"),
        ({"delay": -0.1}, "delay"),
        ({"batch": 0}, "batch"),
        ({"seed": -1}, "seed"),
        ({"floor": -1.0}, "floor"),
        ({"floor": 0.5, "cap": 0.4}, "not be above its cap"),
        ({"config": nets.Config.language(5, 4)}, "classifiers"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(
    parts: dict[str, Any], says: str, unchecked: None
) -> None:
    with pytest.raises(ValueError, match=says):
        recipe(**parts)


def test_images_that_do_not_fit_and_losses_that_diverge_are_refused() -> None:
    data = patterns()
    with pytest.raises(ValueError, match=r"\(1, 4, 4\)"):
        Training(recipe(), data.pixels[..., :2], data.labels)
    with pytest.raises(ValueError, match="3 classes"):
        Training(recipe(), data.pixels, data.labels + 1)
    training = Training(recipe(rate=1e6), data.pixels, data.labels)

    def go_on() -> None:
        for _ in range(5):
            training.advance()

    with pytest.raises(ValueError, match=r"diverged|finite"):
        go_on()


def test_a_rate_whose_steps_overflow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rate must be at most 1e\+06"):
        recipe(rate=1e160)
