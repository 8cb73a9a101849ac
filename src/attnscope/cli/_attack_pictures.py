"""Pictures of attacks: the ascent and the tokens that it found; finite attacks next to the law of
mass splitting.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnscope.attacks import Comparison, WorstCase

BLUE, RED, GREY = "#2166ac", "#b2182b", "#9aa0a6"


def worst(found: WorstCase) -> bytes:
    """Left: the value of every start against the step, below the proved bound. Right: the tokens
    along their two principal axes.
    """
    figure, (left, right) = _panels()
    history = found.history.cpu().numpy()
    best = int(history[-1].argmax())
    left.plot(history, color=GREY, linewidth=0.7, alpha=0.7)
    left.plot(history[:, best], color=BLUE, linewidth=1.8, label=f"best, from {found.start}")
    if found.bound is not None:
        left.axhline(
            found.bound.value,
            color=RED,
            linestyle="--",
            linewidth=1.2,
            label=f"{found.bound.name}, proved upper bound",
        )
    left.set(xlabel="step", ylabel="local Lipschitz constant", yscale="log")
    left.legend(fontsize=8, frameon=False)
    x = found.tokens.cpu()
    if x.shape[1] > 2:
        x = x @ torch.linalg.svd(x, full_matrices=False).Vh[:2].mT
    if x.shape[1] == 1:
        x = torch.cat([x, torch.zeros_like(x)], dim=1)
    size = 12 + 240 * found.weights.cpu().numpy()
    right.scatter(*x.numpy().T, s=size, color=BLUE, alpha=0.5, linewidths=0)
    right.set(
        xlabel="first principal axis",
        ylabel="second principal axis",
        aspect="equal",
        title="tokens found, area grows with mass",
    )
    right.axhline(0, color=GREY, linewidth=0.5)
    right.axvline(0, color=GREY, linewidth=0.5)
    return _png(figure)


def split(found: Comparison) -> bytes:
    """Left: finite attacks against their budget, the law as lines. Right: what splitting each token
    would give.
    """
    figure, (left, right) = _panels()
    for attempts, limit, name, colour in (
        (found.move, found.law.move, "moving tokens", BLUE),
        (found.split, found.law.split, "halves apart", RED),
    ):
        left.plot(
            [attack.eps for attack in attempts],
            [attack.ratio for attack in attempts],
            "o-",
            color=colour,
            markersize=4,
            label=name,
        )
        left.axhline(limit, color=colour, linestyle="--", linewidth=1, label=f"law, {limit:.4g}")
    left.set(xlabel="budget in $W_2$", ylabel="$W_2$ of outputs / $W_2$ of inputs", xscale="log")
    left.legend(fontsize=8, frameon=False)
    apart = found.law.apart.cpu().numpy()
    right.bar(range(len(apart)), apart, color=RED, alpha=0.7, width=0.9)
    right.axhline(found.law.move, color=BLUE, linestyle="--", linewidth=1.2)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set(
        xlabel="token",
        ylabel="constant of its halves apart",
        title="splitting pays above the dashed line",
        ylim=(0, None),
    )
    return _png(figure)


def _panels() -> tuple[Any, Any]:
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, 2)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()
