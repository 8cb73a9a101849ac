"""Through depth: a bracket on a whole network, memory that grows like n, a trace, a monitor.

Each side runs in a process of its own, so that a peak of memory belongs to one of them.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.timing import last_line_of

LENGTHS = (512, 1024, 2048)
STEPS, EVERY = 150, 50

SPAN = """
import json, time
import torch
import attnscope as asc
from attnscope.data import texts

model = asc.load("minilm")
ids = model.encode(texts.text("alice"))[:128]
begun = time.process_time()
found = asc.spectral_norm(model.jacobian((0, "last"), ids), tol=1e-2, failure_probability=1e-6)
taken = time.process_time() - begun
assert found.converged
print(json.dumps({"seconds": taken, "width": found.upper / found.lower - 1, "pairs": found.pairs}))
"""

MEMORY = """
import json, sys
from pathlib import Path
import torch, transformers
import attnscope as asc
from benchmarks.timing import peak_memory

def resident():
    return float(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024

torch.set_num_threads(1)
n = int(sys.argv[1])
config = transformers.LlamaConfig(
    hidden_size=128, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4,
    intermediate_size=256, vocab_size=100, max_position_embeddings=2048,
)
torch.manual_seed(0)
import warnings
warnings.simplefilter("ignore")
model = asc.load(transformers.LlamaModel(config).eval().requires_grad_(False))
ids = torch.randint(0, 100, (n,), generator=torch.Generator().manual_seed(0))
asc.spectral_norm(model.jacobian((0, "last"), ids[:64]), max_pairs=3)
before = resident()
asc.spectral_norm(model.jacobian((0, "last"), ids), max_pairs=10)
print(json.dumps({"megabytes": (peak_memory() - before) / 1e6}))
"""

TRACE = """
import json, time
import attnscope as asc

begun = time.process_time()
table = asc.trace("minilm")
print(json.dumps({"seconds": time.process_time() - begun, "depths": len(table)}))
"""

MONITOR = """
import contextlib, io, json, runpy, sys
import torch
import attnscope as asc

torch.set_num_threads(1)
steps, every = int(sys.argv[1]), int(sys.argv[2])
example = runpy.run_path("examples/train_gpt2_on_alice.py", run_name="example")
ids, letters = example["letters_of"](asc.data.text("alice"))
module = example["network"](letters)
monitor = asc.Monitor(module, ids[:64], every=every)
with contextlib.redirect_stdout(io.StringIO()):
    _, seconds = example["train"](module, ids, steps, monitor)
looked = sum(report["seconds"] for report in monitor.history)
last = monitor.report(steps)
model = asc.load(module.eval())
short = []
for layer in monitor.layers:
    op = model.jacobian(layer, ids[:64])
    found = asc.spectral_norm(op, tol=1e-3, failure_probability=1e-6)
    short.append(1 - last[f"layer{layer}/sigma"] / found.upper)
print(json.dumps({"share": looked / seconds, "short": max(short), "seconds": seconds}))
"""


def main() -> dict[str, dict[str, float]]:
    """CPU seconds of the span and of the trace; memory at three lengths; the monitor's share."""
    span, trace = _run(SPAN), _run(TRACE)
    memory = {n: _run(MEMORY, str(n))["megabytes"] for n in LENGTHS}
    monitor = _run(MONITOR, str(STEPS), str(EVERY))
    short, long = LENGTHS[0], LENGTHS[-1]
    return {
        "bracket of 1e-2 on MiniLM from its embeddings to its last layer, n = 128, in seconds": {
            "value": span["seconds"],
            "at most": 240,
            "width": span["width"],
            "pairs": span["pairs"],
        },
        f"memory of ten pairs on a 4-layer Llama, n = {long}, over that at {short}": {
            "value": memory[long] / memory[short],
            "at most": 1.25 * long / short,
            **{f"megabytes at {n}": found for n, found in memory.items()},
        },
        "attnscope trace minilm, n = 256, in seconds": {"value": trace["seconds"], "at most": 60},
        f"a monitor every {EVERY} steps, share of the training time": {
            "value": monitor["share"],
            "at most": 0.05,
            "training seconds": monitor["seconds"],
        },
        "its lower bounds below the upper end of the bracket, largest part": {
            "value": monitor["short"],
            "at most": 0.1,
        },
    }


def _run(program: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(last_line_of(program, *arguments))
    return found
