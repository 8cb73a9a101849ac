"""What a run of `trace` is asked, cut into, and made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.studies.cell import Cell

MOST_TOKENS = 256
"""Taken where no number of tokens is asked for."""


class State(NamedTuple):
    """The tokens of one sequence at one depth: the stream before block `depth`, or behind the last
    block where it is the number of blocks. All norms are Euclidean, moments those of the tokens.

    `radius` is the RMS norm; `effective_rank` the exponential of the entropy of the covariance's
    spectrum [roy07], at most n - 1 and d; `anisotropy` its largest eigenvalue over its trace;
    `mean_cosine` that of two different tokens. `clusters` counts groups that chains of hops of at
    most `gap` connect. The last three say how far from the depth before: `w2` between the clouds,
    `bures` between the Gaussians of the same mean and covariance, `moved` the RMS of what each
    token moved. `points` are the tokens along two axes that all depths share.
    """

    sequence: int
    depth: int
    n: int
    dim: int
    radius: float
    largest_norm: float
    mean_norm: float
    trace: float
    anisotropy: float
    effective_rank: float
    mean_cosine: float
    clusters: int
    gap: float
    w2: float | None
    bures: float | None
    moved: float | None
    spectrum: np.ndarray
    points: np.ndarray


class Step(NamedTuple):
    r"""The attention step of one layer, $r = x + f(s)$ with $s$ what the attention reads, beside
    the closed form on the Gaussian with the tokens' mean and covariance.

    Errors are relative to the motion: $|m_{pred} - m_r|/|m_r - m_x|$, $|S_{pred} - S_r|_F/|S_r -
    S_x|_F$, and for tokens the RMS of $r_i - x_i - (Bs_i + b)$ over that of $r_i - x_i$. So 1 is
    what predicting no motion at all gives. `_uniform` is attention that reads all tokens alike (the
    theory with A = 0, every token moves the same way; its covariance error is 1), `_together` every
    token moving as their mean did (its mean error is 0, its covariance error 1).

    The last columns are drawn: tokens $r$, means and covariances in the plane of the two largest
    variances of $r$.
    """

    sequence: int
    layer: int
    mean_motion: float
    cov_motion: float
    mean_error: float
    mean_error_uniform: float
    cov_error: float
    token_error: float
    token_error_uniform: float
    token_error_together: float
    mean_relative: float
    """The error of the mean over the norm of the mean."""
    cov_relative: float
    cov_relative_still: float
    """What no motion gives."""
    anisotropy_before: float
    anisotropy_after: float
    anisotropy_predicted: float
    rank_before: float
    rank_after: float
    rank_predicted: float
    points: np.ndarray
    means: np.ndarray
    covs: np.ndarray


class Reading(NamedTuple):
    """What the attention of a layer reads: `sink` is the token read most, `share` the part of all
    attention that it gets, `heads_there` the part of the heads that read it most. `uniform` is the
    entropy of reading all readable tokens alike.
    """

    sequence: int
    layer: int
    sink: int
    text: str
    share: float
    heads_there: float
    entropy: float
    uniform: float
    largest_score: float


class Absent(NamedTuple):
    """A layer without a prediction or without a reading, and why."""

    layer: int
    what: str
    why: str


@dataclass(frozen=True)
class TraceConfig:
    """What to follow.

    Args:
        model: A name that `attnscope.load` knows, or that of a model in the workbench.
        text: A named text, a file, or the name of a text or of ids in the workbench.
        n: Tokens of each sequence; None for as many as there are, up to 256 and the model's limit.
        samples: Sequences, consecutive pieces of the text.
        gap: Of clusters, in RMS distances between two tokens of the same depth.
    """

    model: str = "minilm"
    text: str = "alice"
    n: int | None = None
    samples: int = 1
    gap: float = 0.5
    device: str = "cpu"
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class TraceCell(Cell):
    """One sequence through the whole network; `tokens` is the hash of all ids of the text."""

    model: str
    weights: str
    device: str
    dtype: str
    text: str
    tokens: str
    n: int
    sequence: int
    gap: float
