"""Train a small GPT-2 on Alice in Wonderland, letter by letter, and watch its sensitivity.

    python examples/train_gpt2_on_alice.py --steps 600

Prints a report every 50 steps, and at the end the same constants with brackets.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers

import attnscope as asc

LENGTH, BATCH = 128, 16


def network(letters: int, seed: int = 0, **sizes: int) -> Any:
    """A GPT-2 with 4 layers of width 128."""
    torch.manual_seed(seed)
    config = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": LENGTH} | sizes
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=letters, bos_token_id=0, eos_token_id=0, **config)
    )


def train(
    module: Any, ids: torch.Tensor, steps: int, monitor: asc.Monitor | None = None
) -> tuple[list[float], float]:
    """Losses, and the seconds that training took without the reports."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses, seconds = [], 0.0
    module.train()
    for step in range(steps):
        report = monitor(step) if monitor is not None else None
        if report is not None:
            shown = [report[f"layer{k}/sigma"] for k in monitor.layers]
            loss = f"{losses[-1]:.2f}" if losses else "-"
            print(f"step {step:4d}  loss {loss}  sigma >= " + " ".join(f"{s:.2f}" for s in shown))
        begun = time.perf_counter()
        places = torch.randint(0, len(ids) - LENGTH, (BATCH,), generator=generator)
        batch = torch.stack([ids[i : i + LENGTH] for i in places.tolist()])
        loss = module(batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        seconds += time.perf_counter() - begun
    return losses, seconds


def letters_of(text: str) -> tuple[torch.Tensor, int]:
    """The text as numbers of its letters, and how many letters there are."""
    known = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([known[letter] for letter in text]), len(known)


def main(steps: int) -> None:
    ids, count = letters_of(asc.data.text("alice"))
    module = network(count)
    monitor = asc.Monitor(module, ids[:64], every=50)
    _, seconds = train(module, ids, steps, monitor)
    last = monitor.report(steps)
    looked = sum(report["seconds"] for report in monitor.history)
    print(f"{steps} steps in {seconds:.0f} s, {len(monitor.history)} reports in {looked:.1f} s")
    model = asc.load(module.eval())
    for layer in monitor.layers:
        bracket = asc.spectral_norm(
            model.jacobian(layer, ids[:64]), tol=1e-2, failure_probability=1e-6
        )
        told = last[f"layer{layer}/sigma"]
        print(
            f"layer {layer}: monitor {told:.3f}, bracket {bracket.lower:.3f} to {bracket.upper:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    main(parser.parse_args().steps)
