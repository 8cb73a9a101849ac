"""The page on forward-mode derivatives: its examples run, its numbers are the benchmark's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from benchmarks.table import as_markdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/jvp.md").read_text()


def test_the_examples_run() -> None:
    steps = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(steps) == 3
    names: dict[str, object] = {}
    for step in steps:
        exec(compile(step, "docs/jvp.md", "exec"), names)
    change, curvature, constant = (names[name] for name in ("change", "curvature", "constant"))
    assert isinstance(change, torch.Tensor)
    assert isinstance(curvature, torch.Tensor)
    assert change.shape == curvature.shape == (1, 24, 32)
    # what one direction shows is below the largest singular value
    direction = names["direction"]
    assert isinstance(direction, torch.Tensor)
    assert change.norm() / direction.norm() <= constant.upper * (1 + 1e-5)  # type: ignore[attr-defined]


def test_the_numbers_are_those_of_the_benchmark() -> None:
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    shown = re.search(r"<!-- door:[^>]*-->\n(.*?)\n<!-- /door -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == as_markdown({"door": results["door"]})
