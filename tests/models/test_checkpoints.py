"""Checkpoints as people have them: in several files, in bfloat16, with a task head; and folders
that hold none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from networks import build, inputs

from attnscope.cli import main
from attnscope.models import load


def _same(folder: Path, module: Any) -> None:
    """The folder gives the layers of this network."""
    model = load(folder, dtype=torch.float64)
    expected = load(module, dtype=torch.float64)
    ids = inputs("bert")
    for layer in range(model.layers):
        assert torch.equal(model.tokens(ids, layer), expected.tokens(ids, layer))
        found, truth = (one.function(layer)(one.tokens(ids, layer)) for one in (model, expected))
        assert torch.equal(found, truth)


def test_a_checkpoint_in_several_files_is_read(tmp_path: Path) -> None:
    module: Any = build("bert")
    module.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    _same(tmp_path, module)


def test_a_checkpoint_in_bfloat16_is_read_as_it_is_stored(tmp_path: Path) -> None:
    module: Any = build("bert").to(torch.bfloat16)
    module.save_pretrained(tmp_path)
    _same(tmp_path, module)


def test_the_network_below_a_task_head_is_read(tmp_path: Path) -> None:
    inner: Any = build("bert")
    whole = transformers.BertForSequenceClassification(inner.config).eval()
    whole.save_pretrained(tmp_path)
    _same(tmp_path, whole.bert)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "nobody-knows-this"}, "nobody-knows-this"),
        ({"model_type": "bert", "num_hidden_layers": 1}, "safetensors"),
        (None, "config.json"),
    ],
)
def test_folders_that_hold_no_model_are_one_sentence(
    config: dict[str, Any] | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit) as left:
        main(["measure", str(folder), "--out", str(tmp_path / "run")])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("attnscope: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
