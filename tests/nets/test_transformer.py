"""The network as a whole: both uses, files, and what it says about its attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from attnscope import nets
from attnscope.attention import variants
from attnscope.bounds import NoBound

SMALL = {"dim": 6, "heads": 2, "head_dim": 3, "value_dim": 3, "hidden": 8}


def vit(**parts: Any) -> nets.Transformer:
    return nets.Transformer(nets.Config.vit((1, 4, 4), 3, 2, **{**SMALL, **parts}), seed=1)


def options(variant: str) -> dict[str, Any]:
    return {"position_bias": False, "options": {"tolerance": 1e-3}} if variant == "sinkhorn" else {}


@pytest.mark.parametrize(
    ("variant", "norm"),
    [
        *((variant, "none") for variant in (*variants(), "none")),
        ("softmax", "centre"),
        ("softmax", "layer"),
        ("softmax", "rms"),
    ],
)
def test_a_classifier_of_every_variant_learns(
    variant: str, norm: str, generator: torch.Generator
) -> None:
    network = vit(attention=variant, norm=norm, depth=2, **options(variant)).double()
    x = torch.rand(24, 1, 4, 4, dtype=torch.float64, generator=generator)
    labels = (x[:, 0, 0].sum(-1) > 2).long()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(network(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_heads_look_near_or_anywhere_before_they_are_trained() -> None:
    near, anywhere = (vit(look=look).attentions[0].position_bias for look in ("near", "anywhere"))
    assert near is not None
    assert anywhere is not None
    assert near.min() <= -4
    assert 0 < anywhere.abs().max() < 2, "no token is out of sight"
    with pytest.raises(ValueError, match="look must be one of near, anywhere"):
        vit(look="far")


@pytest.mark.parametrize("variant", [name for name in variants() if name != "sinkhorn"])
def test_a_language_model_learns_and_reads_only_the_past(
    variant: str, generator: torch.Generator
) -> None:
    network = nets.Transformer(
        nets.Config.language(5, 8, attention=variant, depth=2, **SMALL), seed=1
    ).double()
    ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [3, 4, 0, 1, 2, 3, 4, 0]])
    before = network(ids)
    changed = ids.clone()
    changed[:, 5:] = 4 - changed[:, 5:]
    assert torch.allclose(network(changed)[:, :5], before[:, :5], atol=1e-12)
    assert not torch.allclose(network(changed)[:, 5:], before[:, 5:])
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(
            network(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.7
    assert network(ids[:, :3]).shape == (2, 3, 5), "shorter sequences are read too"


def test_the_network_is_the_composition_of_its_layers_and_a_stack_is_a_loop(
    generator: torch.Generator,
) -> None:
    network = vit(depth=2).double()
    x = torch.rand(2, 3, 1, 4, 4, dtype=torch.float64, generator=generator)
    out = x
    for layer in network.layers:
        out = layer(out)
    assert torch.equal(out, network(x))
    assert torch.allclose(network(x)[1, 2], network(x[1, 2]))


def test_a_seed_decides_the_weights() -> None:
    first, again, other = (nets.Transformer(vit().config, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def test_norms_of_a_are_those_of_its_dense_matrix_and_content_can_be_switched_off(
    generator: torch.Generator,
) -> None:
    network = vit(depth=2, norm="centre").double()
    with torch.no_grad():
        for layer in network.attentions:
            layer.query_bias.normal_(generator=generator)
    centred = torch.eye(6, dtype=torch.float64) - 1 / 6
    for layer, norms in zip(network.attentions, network.attention_norms(), strict=True):
        dense = centred @ layer.key.mT @ layer.query @ centred * layer.scale
        assert torch.allclose(norms, torch.linalg.matrix_norm(dense, 2).detach())
    off = network.with_content_off()
    assert all(float(norms.max()) == 0 for norms in off.attention_norms())
    assert all(float(norms.min()) > 0 for norms in network.attention_norms()), (
        "the network itself is left as it was"
    )
    tokens = off.layers[0](torch.rand(2, 1, 4, 4, dtype=torch.float64, generator=generator))
    heads = off.attentions[0].attention()
    from attnscope.measures import Particles

    coupling = heads.coupling(tokens, Particles(tokens))
    assert torch.allclose(coupling[0], coupling[1]), (
        "the coupling still depends on what the tokens say"
    )


def test_heads_are_held_between_floor_and_caps() -> None:
    (layer,) = vit(step=0.5).attentions
    with torch.no_grad():
        layer.query[0] *= 9
        layer.query[1] *= 0.01
        layer.output[1] *= 50
    before = torch.linalg.matrix_norm(layer.attention().heads.values, 2)
    layer.hold(0.2, 0.4, 0.1)
    assert torch.allclose(
        layer.content_norms(), torch.tensor([0.4, 0.2], dtype=torch.float64), rtol=1e-5
    )
    written = torch.linalg.matrix_norm(layer.attention().heads.values, 2)
    assert torch.allclose(written, before.clamp(max=0.2), rtol=1e-4)
    kept = weights(layer)
    layer.hold(0.0, float("inf"), float("inf"))
    assert all(torch.equal(kept[name], value) for name, value in weights(layer).items()), (
        "what is within its bounds is left alone"
    )


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_the_control_has_the_same_parts_but_attention() -> None:
    control = vit(depth=2).without_attention()
    assert not control.attentions
    assert [type(layer).__name__ for layer in control.layers] == [
        "PatchEmbedding",
        "SLL",
        "SLL",
        "Head",
    ]


def test_a_language_model_refuses_a_bound_by_name() -> None:
    network = nets.Transformer(nets.Config.language(5, 8, **SMALL))
    with pytest.raises(NoBound):
        network.layers[0].over(torch.zeros(1, 8), torch.tensor([0.1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_give_the_same_network_back(
    dtype: torch.dtype, tmp_path: Path, generator: torch.Generator
) -> None:
    network = vit(attention="sigmoid", options={"tokens": 4}, depth=2).to(dtype)
    nets.save(network, tmp_path / "deep" / "net", notes={"clean": 0.9})
    again = nets.load(tmp_path / "deep" / "net")
    assert again.config == network.config
    x = torch.rand(5, 1, 4, 4, dtype=dtype, generator=generator)
    assert torch.equal(again(x), network(x))
    assert nets.describe(tmp_path / "deep" / "net")["notes"] == {"clean": 0.9}
    assert sorted(path.name for path in (tmp_path / "deep" / "net").iterdir()) == [
        "config.json",
        "network.safetensors",
    ]


def spoil_version(folder: Path) -> None:
    edit(folder, version=2)


def spoil_config(folder: Path) -> None:
    edit(folder, config={"kind": "classifier", "outputs": 3, "colour": "red"})


def spoil_shape(folder: Path) -> None:
    description = json.loads((folder / "config.json").read_text())
    edit(folder, config={**description["config"], "hidden": 9})


def spoil_json(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[: len(text) // 2])


def spoil_length(folder: Path) -> None:
    content = (folder / "network.safetensors").read_bytes()
    (folder / "network.safetensors").write_bytes(content[:-100])


def spoil_bit(folder: Path) -> None:
    content = bytearray((folder / "network.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "network.safetensors").write_bytes(bytes(content))


def spoil_number(folder: Path) -> None:
    import hashlib

    state = safetensors.torch.load_file(folder / "network.safetensors")
    state["layers.0.weight"][0, 0] = float("nan")
    content = safetensors.torch.save(state)
    (folder / "network.safetensors").write_bytes(content)
    edit(folder, sha256=hashlib.sha256(content).hexdigest())


def edit(folder: Path, **changes: Any) -> None:
    description = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**description, **changes}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_version, "version 2"),
        (spoil_config, "colour"),
        (spoil_shape, "misshaped"),
        (spoil_json, "not JSON"),
        (spoil_length, "cut off"),
        (spoil_bit, "sha256 differs"),
        (spoil_number, "NaN"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(spoil: Any, says: str, tmp_path: Path) -> None:
    nets.save(vit(), tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=says):
        nets.load(tmp_path)


def test_a_folder_without_a_network_and_a_network_with_a_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no network"):
        nets.load(tmp_path)
    network = vit()
    with torch.no_grad():
        network.layers[0].weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="infinite"):
        nets.save(network, tmp_path / "net")
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"attention": "dotproduct"}, "softmax"),
        ({"depth": 0}, "depth"),
        ({"mlp": "conv"}, "sll"),
        ({"half_width": 0.0}, "half_width"),
        ({"pooling": "tokens"}, "flatten"),
        ({"patch": 3}, "do not tile"),
        ({"attention": "sinkhorn"}, "position bias"),
    ],
)
def test_parts_that_do_not_exist_are_refused(
    parts: dict[str, Any], says: str, unchecked: None, generator: torch.Generator
) -> None:
    def use() -> None:
        config = nets.Config.vit((1, 4, 4), 3, **{"patch": 2, **SMALL, **parts})
        nets.Transformer(config)(torch.rand(1, 1, 4, 4, generator=generator))

    with pytest.raises(ValueError, match=says):
        use()


def test_inputs_of_the_wrong_shape_are_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., 1, 4, 4\)"):
        vit()(torch.rand(2, 3, 4, 4))
    language = nets.Transformer(nets.Config.language(5, 8, **SMALL))
    for ids, error, says in (
        (torch.zeros(1, 9, dtype=torch.long), ValueError, "1 to 8"),
        (torch.full((1, 3), 5), ValueError, "0..4"),
        (torch.zeros(1, 3), TypeError, "token numbers"),
    ):
        with pytest.raises(error, match=says):
            language(ids)
