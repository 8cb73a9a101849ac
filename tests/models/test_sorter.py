"""The GPT-2 adapter against published activations of a trained model that sorts letters."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope import Particles
from attnscope.models import load

FOLDER = os.environ.get("ATTNSCOPE_SORTER")
pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason=(
        "NOT CHECKED: ATTNSCOPE_SORTER must name the folder of the sorting GPT-2 with its"
        " reference_activations.json"
    ),
)


def test_activations_are_the_published_ones() -> None:
    assert FOLDER is not None
    published = json.loads((Path(FOLDER) / "reference_activations.json").read_text())

    def reference(name: str) -> Tensor:
        entry = published[name]
        return torch.from_numpy(
            np.frombuffer(base64.b64decode(entry["data"]), dtype="<f4").copy()
        ).reshape(entry["shape"])

    model = load(FOLDER)
    ids = reference("idx").long()
    stream, x = model.tokens(ids, 0, "block"), model.tokens(ids, 0)
    attention, mu = model.attention(0), Particles(x)
    found = {
        "x": stream,
        "ln1": x,
        "q": attention.heads.queries(x),
        "k": attention.heads.keys(x),
        "v": attention.heads.read(x),
        "attSm": attention.coupling(x, mu),
        "yProj": attention(x, mu),
        "attnResid": model.function(0, "residual")(stream),
    }
    for layer in range(3):
        stream = model.function(layer, "block")(stream)
        found[f"block{layer}"] = stream
    for name, value in found.items():
        assert (value - reference(name)).abs().max() < 2e-6, name
