"""The figures of `attnscope certify`: accuracy against eps, one layer's bound against an attack,
images nearest to their certificate.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attacks.projected import pgd
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import sensitivity
from attnscope.certification.report import Row
from attnscope.certification.report_nearest import Neighbour
from attnscope.measures import Particles

BLUE, RED, GREY = "#2166ac", "#b2182b", "#9aa0a6"
TOKENS, DIM = 16, 32
HIGHEST = 1000
LAYER_EPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def accuracy_against_eps(rows: Sequence[Row]) -> bytes:
    """Certified accuracy at every eps, by the proved radii, and accuracy under attack at the eps
    that were attacked; control dashed.
    """
    return _png(lambda figure: _accuracy(figure, rows), (6.0, 4.0))


def layer_bound_against_attack(heads: Sequence[int] = (1, 8), seed: int = 0) -> bytes:
    """How far one residual softmax layer (16 tokens of dimension 32, random weights) can move:
    proved and found, for 1 and 8 heads.
    """
    return _png(lambda figure: _layers(figure, heads, seed), (1.4 + 3.9 * len(heads), 3.8))


def nearest_images(neighbours: Sequence[Neighbour], classes: Sequence[str]) -> bytes:
    """Each image above the nearest one found that is read otherwise, and their difference."""
    return _png(
        lambda figure: _neighbours(figure, neighbours, classes), (0.9 + 1.75 * len(neighbours), 6.1)
    )


def _png(draw: Callable[[Any], None], size: tuple[float, float]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return image.getvalue()


def _accuracy(figure: Any, rows: Sequence[Row]) -> None:
    ax = figure.subplots()
    reach = 1.1 * max(row.eps for row in rows)
    network = [row for row in rows if row.network == "network"]
    control = [row for row in rows if row.network == "control"]
    _curves(ax, network, reach, (BLUE, RED), "", {"linestyle": "-", "zorder": 3})
    if control:
        _curves(ax, control, reach, (GREY, GREY), "no-attention control: ", {"linestyle": "--"})
    ax.set(xlabel="eps (l2 in pixel space)", ylabel="accuracy in %", ylim=(0, 102), xlim=(0, None))
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.legend(fontsize=8, frameon=False)


def _curves(
    ax: Any,
    rows: Sequence[Row],
    reach: float,
    colours: tuple[str, str],
    owner: str,
    style: dict[str, Any],
) -> None:
    """Both curves are steps: a radius proves every smaller eps, and an image broken at one eps is
    broken at every larger one.
    """
    first = {row.image: row for row in rows}.values()
    clean = sum(row.label == row.predicted for row in first) / len(first)
    radii = np.array([row.radius for row in first])
    x = np.unique(radii)
    share = np.array([clean, *((radii >= eps).mean() for eps in x[x > 0]), 0.0])
    ax.step(
        [0, *x[x > 0], x[-1]],
        100 * share,
        color=colours[0],
        label=f"{owner}certified (proved)",
        **style,
    )
    eps = sorted({row.eps for row in rows})
    standing = 100 * np.array(
        [
            clean,
            *(
                sum(row.broken is False for row in rows if row.eps == one) / len(first)
                for one in eps
            ),
        ]
    )
    ax.step(
        [0, *eps, reach],
        [*standing, standing[-1]],
        where="post",
        color=colours[1],
        **style | {"linestyle": ":"},
    )
    ax.plot(
        eps,
        standing[1:],
        "o",
        color=colours[1],
        markersize=4,
        label=f"{owner}not broken by PGD",
        zorder=style.get("zorder", 2),
    )


def _layers(figure: Any, heads: Sequence[int], seed: int) -> None:
    from matplotlib import colormaps

    axes = np.atleast_1d(figure.subplots(1, len(heads), sharex=True, sharey=True))
    eps = torch.tensor(LAYER_EPS, dtype=torch.float64)
    lowest = []
    for ax, h in zip(axes, heads, strict=True):
        attention, x = random_layer(h, seed)
        bound = sensitivity(attention, x.expand(len(eps), *x.shape), eps, residual=1.0)
        attacked = deviation(attention, x, eps)
        for place, (name, candidate) in enumerate(bound.candidates.items()):
            colour = colormaps["turbo"]((place + 0.5) / len(bound.candidates))
            ax.plot(LAYER_EPS, (candidate / eps).numpy(), color=colour, linewidth=0.9, label=name)
        ax.plot(
            LAYER_EPS,
            (bound.value / eps).numpy(),
            color="black",
            linewidth=2.2,
            label="smallest (proved)",
        )
        ax.plot(
            LAYER_EPS,
            (attacked / eps).numpy(),
            color=RED,
            marker="o",
            markersize=4,
            linewidth=1.4,
            label="PGD (found)",
        )
        ratio = bound.value / attacked
        lowest.append(float((attacked / eps).min()))
        ax.set(xscale="log", yscale="log")
        ax.set_title(
            f"{h} head{'s' * (h > 1)}: smallest / PGD from {float(ratio.min()):.2f} to"
            f" {float(ratio.max()):.2f}",
            fontsize=9,
        )
        ax.grid(alpha=0.25, linewidth=0.5)
    axes[0].set_ylim(0.8 * min(lowest), HIGHEST)
    figure.legend(
        *axes[0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside right center"
    )
    figure.supxlabel("eps (tokens move by at most this much, Frobenius norm)", fontsize=9)
    figure.supylabel("how far the output moves / eps", fontsize=9)


def random_layer(heads: int, seed: int) -> tuple[Softmax, Tensor]:
    r"""A softmax layer with $\|A_h\|$ near 1 and the tokens that it reads, all Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    k = DIM // heads

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    query, key, value = (gaussian(heads, k, DIM) / DIM**0.5 for _ in range(3))
    made = Heads(query, key, value, gaussian(heads, DIM, k) / DIM**0.5)
    return Softmax(made), gaussian(TOKENS, DIM)


def deviation(
    attention: Softmax, x: Tensor, eps: Tensor, steps: int = 100, restarts: int = 5
) -> Tensor:
    r"""The largest $\|F(X + D) - F(X)\|_F$ found over $\|D\|_F \le$ eps, $F(X) = X + \Gamma(X)$: a
    lower bound, one for each eps.

    The attack on classes is put to use: against a class with logit 0 it raises the other logit,
    which is the deviation.
    """

    def layer(at: Tensor) -> Tensor:
        return at + attention(at, Particles(at))

    before = layer(x)

    def logits(at: Tensor) -> Tensor:
        moved = torch.linalg.vector_norm((layer(at) - before).flatten(1), dim=1)
        return torch.stack([torch.zeros_like(moved), moved], dim=1)

    labels = torch.zeros(len(eps), dtype=torch.int64)
    return -pgd(logits, x.expand(len(eps), *x.shape).clone(), labels, eps, steps, restarts).gap


def _neighbours(figure: Any, neighbours: Sequence[Neighbour], classes: Sequence[str]) -> None:
    axes = figure.subplots(3, len(neighbours), squeeze=False)
    for column, near in zip(axes.T, neighbours, strict=True):
        for ax in column:
            ax.set(xticks=[], yticks=[])
        _show(column[0], near.pixels)
        column[0].set_title(f"{classes[near.label]}\nproved to {near.radius:.3f}", fontsize=9)
        if near.misread is None or near.distance is None or near.read_as is None:
            for ax in column[1:]:
                ax.axis("off")
            column[1].text(
                0.5,
                0.5,
                "no attack\nfound",
                ha="center",
                va="center",
                fontsize=9,
                transform=column[1].transAxes,
            )
            continue
        _show(column[1], near.misread)
        column[1].set_title(f"read as {classes[near.read_as]}\nat {near.distance:.3f}", fontsize=9)
        difference = (near.misread - near.pixels).mean(0).numpy()
        largest = max(float(np.abs(difference).max()), 1e-12)
        column[2].imshow(difference, cmap="RdBu_r", vmin=-largest, vmax=largest)
        column[2].set_title(f"difference\nup to {largest:.2g}", fontsize=9)
    figure.suptitle(
        "images nearest to their certificate, and the nearest misread image that PGD found",
        fontsize=10,
    )


def _show(ax: Any, pixels: Tensor) -> None:
    """Grey for one channel, colours for three; what leaves [0, 1] is shown at its edge."""
    picture: NDArray[Any] = pixels.clamp(0, 1).permute(1, 2, 0).numpy()
    if picture.shape[2] == 1:
        ax.imshow(picture[..., 0], cmap="gray_r", vmin=0, vmax=1)
    else:
        ax.imshow(picture)
