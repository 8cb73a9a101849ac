"""Names, paths and modules become models; what cannot is refused in one clear sentence."""

from __future__ import annotations

import importlib.util
import json
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
import transformers
from architectures import ARCHITECTURES
from networks import build, inputs, loaded
from safetensors.torch import load_file, save_file

from attnscope import Particles
from attnscope.models import ModelNotice, _load, load

TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having"
    " nothing to do."
)


def test_minilm_is_a_real_bert() -> None:
    model = load("minilm", dtype=torch.float64)
    assert (model.family, model.layers, model.heads, model.dim, model.positions, model.causal) == (
        "bert",
        6,
        12,
        384,
        512,
        False,
    )
    ids = model.encode(TEXT)
    assert ids.tolist()[:4] == [5650, 2001, 2927, 2000]
    x = model.tokens(ids, 3)
    assert torch.equal(x, model.tokens(TEXT, 3))
    assert (model.attention(3)(x, Particles(x)) - model.function(3)(x)).abs().max() < 1e-12
    assert x.norm(dim=-1).max() <= model.norm_radius(3)
    assert model.config._attn_implementation == "eager"


def test_damaged_minilm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "MINILM_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="expected 0000"):
        load("minilm")


def test_random_models_have_full_size() -> None:
    model = load("bert-random")
    assert (model.layers, model.heads, model.dim, model.positions, model.causal) == (
        12,
        12,
        768,
        512,
        False,
    )


@pytest.mark.parametrize(("name", "kind"), [("gpt2-random", "GPT2"), ("bert-random", "Bert")])
def test_random_models_follow_their_recipe_and_leave_the_global_seed_alone(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, config = getattr(transformers, f"{kind}Model"), getattr(transformers, f"{kind}Config")
    small = partial(config, num_hidden_layers=2, hidden_size=24, vocab_size=60_000)
    library = SimpleNamespace(**{f"{kind}Model": network, f"{kind}Config": small})
    monkeypatch.setattr(_load, "_transformers", lambda _: library)
    torch.manual_seed(7)
    expected_draw = torch.rand(3)
    torch.manual_seed(7)
    model = load(name)
    assert torch.equal(torch.rand(3), expected_draw)
    torch.manual_seed(0)
    recipe = network(small())
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.parameters(), recipe.parameters(), strict=True)
    )
    with pytest.warns(ModelNotice, match="has no tokenizer: its tokens are the words and signs"):
        ids = model.encode("Alice was, Alice is.")
    assert len(ids) == 6
    assert ids[0] == ids[3]
    assert len(ids.unique()) == 5


def test_a_directory_of_safetensors_is_read(tmp_path: Path) -> None:
    module = build("gpt2")
    module.save_pretrained(tmp_path)
    model, source = load(str(tmp_path)), inputs("gpt2")
    assert model.dtype == torch.float32
    assert not model.module.training
    torch.testing.assert_close(model.tokens(source, 2), load(module).tokens(source, 2))
    with pytest.raises(ValueError, match="came without a tokenizer: pass a tensor of token ids"):
        model.encode(TEXT)


def test_a_tokenizer_that_breaks_when_it_reads_is_none(tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "?": 2}, unk_token="?"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    assert load(str(tmp_path)).encode("a").tolist() == [1]
    read = json.loads((tmp_path / "tokenizer.json").read_text())
    read["model"]["unk_token"] = "not there"
    (tmp_path / "tokenizer.json").write_text(json.dumps(read))
    with pytest.raises(ValueError, match=r"cannot read the text .*give ids instead"):
        load(str(tmp_path)).encode("b")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": []}))
    with pytest.raises(ValueError, match="came without a tokenizer"):
        load(str(tmp_path)).encode("a")


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: w for name, w in weights.items() if "h.1.attn.c_attn" not in name},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ValueError, match=r"lack h\.1\.attn\.c_attn"):
        load(tmp_path)


def test_pickled_weights_are_not_opened(tmp_path: Path) -> None:
    module = build("gpt2")
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"needs config\.json and model\.safetensors"):
        load(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(
        "import pathlib\nfrom transformers import PretrainedConfig,"
        f" PreTrainedModel\npathlib.Path({str(ran)!r}).touch()\nclass Config(PretrainedConfig):\n  "
        "  model_type = 'own'\nclass Model(PreTrainedModel):\n    config_class = Config\n"
    )
    automatic = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": automatic}))
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="holds no model that can be read"):
        load(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize("shown", [True, False])
def test_the_messages_of_transformers_are_left_as_they_were(shown: bool, tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    settings, loggers = (
        transformers.utils.logging,
        [logging.getLogger(name) for name in ("transformers", "huggingface_hub")],
    )
    before, levels = settings.is_progress_bar_enabled(), [logger.level for logger in loggers]
    (settings.enable_progress_bar if shown else settings.disable_progress_bar)()
    try:
        for logger in loggers:
            logger.setLevel(logging.INFO)
        load(tmp_path)
        assert settings.is_progress_bar_enabled() is shown
        assert [logger.level for logger in loggers] == [logging.INFO, logging.INFO]
    finally:
        (settings.enable_progress_bar if before else settings.disable_progress_bar)()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def test_a_network_of_mixed_precision_becomes_one_of_a_single_dtype() -> None:
    module = build("gpt2")
    module.h[2].double()
    model = loaded(module, torch.float32)
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert {p.dtype for p in module.parameters()} == {torch.float32, torch.float64}


def test_broken_weights_are_one_sentence(tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match="holds no model that can be read") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["attnscope/no-such-model", "not a name", "./nowhere"])
def test_a_model_that_is_not_there_is_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"there is no model .* here and it could not be downloaded"
    ) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "attnscope\[hf\]"'):
        load("gpt2-random")


def test_a_missing_demo_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "MINILM_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ValueError, match=r'pip install "attnscope\[demo\]"'):
        load("minilm")


def test_the_users_module_is_left_as_it_is() -> None:
    module = build("gpt2", "sdpa")
    before = {name: p.clone() for name, p in module.named_parameters()}
    model = loaded(module, torch.float64)
    model.function(0, "block")(model.tokens(inputs("gpt2"), 0, "block"))
    assert model.dtype == torch.float64
    assert all(
        torch.equal(before[name], p) and p.requires_grad and p.dtype == torch.float32
        for name, p in module.named_parameters()
    )
    assert module.config._attn_implementation == "sdpa"
    assert loaded(module, torch.float32).module is module


def test_a_task_head_is_taken_off() -> None:
    module = transformers.GPT2LMHeadModel(build("gpt2").config).eval()
    assert load(module).module is module.transformer


def test_dropout_left_on_is_refused() -> None:
    module = build("gpt2").train()
    with pytest.raises(ValueError, match="training mode"):
        load(module)
    model = load(module.eval())
    module.h[1].attn.train()
    with pytest.raises(ValueError, match="training mode"):
        model.function(0)
    with pytest.raises(ValueError, match="training mode"):
        model.tokens(inputs("gpt2"), 0)


@pytest.mark.usefixtures("unchecked")
def test_bad_requests_are_refused() -> None:
    model = loaded(build("gpt2"))
    ids = inputs("gpt2")[0]
    for layer in (-1, 3, True, 1.0):
        with pytest.raises(ValueError, match="layer must be a whole number from 0 to 2"):
            model.attention(layer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="part must be one of 'attention', 'norm"):
        model.function(0, "heads")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 9 tokens, got 10"):
        model.tokens(torch.ones(10, dtype=torch.long), 0)
    with pytest.raises(ValueError, match=r"ids must lie in 0\.\.39, got values from 1 to 40"):
        model.tokens(torch.tensor([1, 40]), 0)
    for source in (ids.double(), ids[None, None], ids[:0], None):
        with pytest.raises(ValueError, match="whole-number ids"):
            model.tokens(source, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"needs tokens of shape \(\.\.\., n, 12\)"):
        model.function(0)(torch.zeros(5, 11, dtype=torch.float64))
    with pytest.raises(ValueError, match="string with words"):
        model.encode("  ")
    with pytest.raises(ValueError, match="reads images: pass pixels of shape"):
        loaded(build("vit")).tokens("a text", 0)
    with pytest.raises(TypeError, match="load needs a name"):
        load(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be"):
        load(build("gpt2"), dtype=torch.float16)
    with pytest.raises(
        ValueError, match=r"bfloat16 weights, too coarse.*pass dtype=torch\.float32"
    ):
        load(build("gpt2").bfloat16())
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here"):
        load(build("gpt2"), device="cuda:99")


def test_roberta_and_mpnet_count_positions_from_the_padding_id() -> None:
    for name in ("roberta", "mpnet"):
        model = loaded(build(name))
        assert model.positions == 9
        assert model.tokens(torch.full((9,), 5), 1).shape == (9, 12)


def test_beyond_its_window_a_model_is_measured_through_taps() -> None:
    """Heads from weights hold one causal mask; within the window it is theirs."""
    module = build("mistral").double()
    module.config.sliding_window = 5
    model, ids = loaded(module), inputs("mistral", n=8)[0]
    assert model.rebuilt(1, model.tokens(ids[:5], 1))
    with pytest.warns(ModelNotice, match="the same map on at most 5 tokens"):
        model.attention(1)
    x = model.tokens(ids, 1)
    with pytest.warns(ModelNotice, match="a window shorter than the sequence"):
        assert not model.rebuilt(1, x)
    dense = torch.func.jacrev(model.function(1))(x).detach().reshape(x.numel(), -1)
    assert dense.reshape(8, 16, 8, 16)[7, :, 2].abs().max() == 0
    assert dense.reshape(8, 16, 8, 16)[7, :, 3].abs().max() > 0
    assert (model.jacobian(1, ids).to_dense() - dense).abs().max() < 1e-6 * dense.abs().max()
    heads = sum(model.jacobian(1, ids, head=head).to_dense() for head in range(4))
    assert (heads - dense).abs().max() < 1e-6 * dense.abs().max()


def test_angles_that_depend_on_the_length_have_no_heads() -> None:
    module = build("llama")
    module.rotary_emb.rope_type = "dynamic"
    with pytest.raises(ValueError, match="depend on the length of the sequence"):
        loaded(module).attention(0)


def test_the_device_is_honoured() -> None:
    assert load(build("gpt2"), device="meta").device == torch.device("meta")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"activation_function": "no-such-activation"}, "no-such-activation"),
        ({"n_head": 0}, "do not make a model|holds no model"),
        ({"n_layer": -1}, "has no layers|do not make a model"),
    ],
)
def test_configurations_that_make_no_model_are_one_sentence(
    broken: dict[str, object], said: str, tmp_path: Path
) -> None:
    build("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **broken}))
    with pytest.raises(ValueError, match=said) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_failed_import_inside_transformers_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'sentencepiece_of_the_moon'")

    build("gpt2").save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", broken)
    with pytest.raises(ValueError, match=r"could not import what .* needs: No module named"):
        load(tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("device", ["nonsense", "cuda", "mps", "", 3.5, "cpu:-2"])
def test_devices_that_are_not_there_are_one_sentence(device: object) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(ValueError, match=r"device .* cannot be used here") as caught:
        load(build("gpt2"), device=device)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_networks_that_are_no_stack_of_maps_on_tokens_are_refused_for_that() -> None:
    swin = transformers.SwinModel(
        transformers.SwinConfig(
            image_size=16,
            patch_size=2,
            num_channels=2,
            embed_dim=8,
            depths=[1, 2],
            num_heads=[2, 2],
            window_size=2,
        )
    )
    with pytest.raises(ValueError, match="change the number or the width of the tokens"):
        load(swin.eval())


def test_layers_without_attention_say_so_and_keep_their_numbers() -> None:
    module = ARCHITECTURES["lfm2"].build()
    with pytest.warns(ModelNotice, match="Layers 0, 2 have no attention"):
        model = load(module)
    assert model.layers == 3
    x = model.tokens(torch.arange(2, 7), 2, "block")
    assert model.function(2, "block")(x).shape == x.shape
    with pytest.raises(ValueError, match=r"layer 2 of .* has no attention"):
        model.tokens(torch.arange(2, 7), 2, "attention")


def test_a_network_is_known_to_be_causal_before_it_has_run() -> None:
    assert loaded(ARCHITECTURES["bloom"].build()).causal
    assert not loaded(ARCHITECTURES["electra"].build()).causal


def test_of_an_encoder_and_a_decoder_the_encoder_is_measured() -> None:
    options = {**ARCHITECTURES["t5"].options, "decoder_start_token_id": 0}
    module = transformers.T5Model(transformers.T5Config(**options)).eval()
    with pytest.warns(ModelNotice) as told:
        model = load(module)
    assert "its encoder is measured" in str(told[0].message)
    assert model.module is module.encoder
