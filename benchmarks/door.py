"""One forward-mode derivative of a whole model behind the door: memory beyond the weights and CPU
time, beside the same model with eager attention.

Each side runs in a process of its own, so that a peak belongs to one of them.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.timing import last_line_of

TOKENS = 4096

SCRIPT = """
import json, sys, time
from pathlib import Path
import torch, transformers
from attnscope.models.door import register_attention
from benchmarks.timing import peak_memory

def resident():
    return float(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024

torch.set_num_threads(1)
kind, implementation, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
register_attention()
if kind == "llama":
    config = transformers.LlamaConfig(
        hidden_size=576, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=6,
        intermediate_size=1536, vocab_size=100, max_position_embeddings=n,
    )
else:
    config = transformers.GPT2Config(n_positions=n, bos_token_id=0, eos_token_id=0)
config._attn_implementation = implementation
torch.manual_seed(0)
model = transformers.AutoModel.from_config(config).eval().requires_grad_(False)
width = config.hidden_size

def moved(n):
    generator = torch.Generator().manual_seed(0)
    x, t = torch.randn(2, 1, n, width, generator=generator)
    function = lambda x: model(inputs_embeds=x, use_cache=False).last_hidden_state
    return torch.func.jvp(function, (x,), (t,))[1]

moved(32)
before, begun = resident(), time.process_time()
change = moved(n)
taken = time.process_time() - begun
assert torch.isfinite(change).all()
print(json.dumps({
    "gigabytes": (peak_memory() - before) / 1e9,
    "seconds": taken,
    "norm": float(change.double().norm()),
}))
"""


def main() -> dict[str, dict[str, float]]:
    """The derivative of a 6-layer Llama against eager attention, and of a model of GPT-2's size."""
    ours, eager = (_run("llama", implementation) for implementation in ("attnscope", "eager"))
    gpt2 = _run("gpt2", "attnscope")
    llama = f"JVP of a 6-layer Llama, d = 576, n = {TOKENS:,}"
    large = f"JVP of a 12-layer model of GPT-2's size, n = {TOKENS:,}"
    return {
        f"{llama}, vs eager attention": {
            "ratio": eager["seconds"] / ours["seconds"],
            "must": 78 / 28,
            "seconds": ours["seconds"],
            "eager seconds": eager["seconds"],
            "relative difference of the norms": abs(ours["norm"] / eager["norm"] - 1),
        },
        f"{llama}, memory beyond the weights in GB": {
            "value": ours["gigabytes"],
            "at most": 0.92,
            "eager": eager["gigabytes"],
        },
        f"{large}, memory beyond the weights in GB": {
            "value": gpt2["gigabytes"],
            "at most": 2.0,
            "stretch": 1.0,
            "seconds": gpt2["seconds"],
        },
    }


def _run(kind: str, implementation: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(last_line_of(SCRIPT, kind, implementation, str(TOKENS)))
    return found
