"""From one forward pass to rows: shapes of the clouds, attention steps, what is read."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import NoClosedForm
from attnscope.flows import anisotropy, clusters
from attnscope.measures import Gaussian, Particles
from attnscope.models import Model
from attnscope.studies.trace.gaussian import moments, predicted, uniform_motion
from attnscope.studies.trace.rows import Absent, Reading, State, Step
from attnscope.transport import wasserstein

TINY = 1e-300
ROUNDING = 1e-5
"""Tokens nearer to each other than this part of their norm are one: a pass in float32 tells no
more.
"""


def common_axes(clouds: list[Float[Tensor, "n d"]]) -> Float[Tensor, "d two"]:
    """The two axes along which the tokens of all depths vary most, each depth counting alike."""
    second = sum(Particles(x).cov() / max(float(Particles(x).cov().trace()), TINY) for x in clouds)
    assert isinstance(second, Tensor)
    return torch.linalg.eigh(second).eigenvectors[:, -2:].flip(-1)


def state(
    sequence: int,
    depth: int,
    x: Float[Tensor, "n d"],
    before: Float[Tensor, "n d"] | None,
    gap: float,
    axes: Float[Tensor, "d two"],
) -> State:
    """What the tokens look like at one depth, and how far they are from the depth before."""
    mu = Particles(x)
    mean, cov = mu.mean(), mu.cov()
    norms = torch.linalg.vector_norm(x, dim=-1)
    spectrum = torch.linalg.eigvalsh(cov).flip(0).clamp(min=0)
    distance = float((2 * spectrum.sum()).sqrt())
    radius = float(norms.square().mean().sqrt())
    hops = max(gap * distance, ROUNDING * radius) or 1.0
    units = x / norms.clamp(min=TINY)[:, None]
    n = len(x)
    w2 = None if before is None else wasserstein(Particles(before), mu)
    return State(
        sequence=sequence,
        depth=depth,
        n=n,
        dim=x.shape[1],
        radius=radius,
        largest_norm=float(norms.max()),
        mean_norm=float(torch.linalg.vector_norm(mean)),
        trace=float(spectrum.sum()),
        anisotropy=float(anisotropy(cov)),
        effective_rank=effective_rank(spectrum),
        mean_cosine=float((units.sum(0).square().sum() - n) / (n * (n - 1))),
        clusters=clusters(mu, hops).number,
        gap=hops,
        w2=w2,
        bures=None if before is None else _between_gaussians(before, x),
        moved=None if before is None else _rms(x - before),
        spectrum=spectrum.numpy(),
        points=(x @ axes).numpy(),
    )


def effective_rank(spectrum: Float[Tensor, " d"]) -> float:
    r"""$\exp(-\sum_ip_i\log p_i)$, $p$ the spectrum over its sum [roy07]; 0 where it is zero."""
    total = float(spectrum.sum())
    return float(torch.special.entr(spectrum / total).sum().exp()) if total > 0 else 0.0


def step(sequence: int, model: Model, layer: int, x: Float[Tensor, "n d"]) -> Step | Absent:
    """The attention step of a layer at its tokens beside the closed form."""
    if not model.attends(layer):
        return Absent(layer, "prediction", "it has no attention")
    if not model.rebuilt(layer, x, "residual"):
        return Absent(layer, "prediction", "its heads cannot be rebuilt from its weights")
    with torch.no_grad():
        read = model.read(layer, x[None])[0].double()
        after = model.function(layer, "residual")(x).double()
    tokens = Particles(x.double())
    attention = model.attention(layer).to(torch.float64)
    known = moments(tokens, read)
    try:
        law = predicted(attention, known)
    except NoClosedForm:
        return Absent(layer, "prediction", "its scores depend on the place of a token")
    motion, found = after - tokens.x, tokens.at(after)
    mean, cov = found.mean(), found.cov()
    moved, turned = _size(mean - known.mean), _size(cov - known.cov)
    alike = uniform_motion(attention, known)
    field = read @ law.matrix.mT + law.offset
    covs = (known.cov, cov, law.cov)
    shapes = [float(anisotropy(c)) for c in covs]
    ranks = [effective_rank(torch.linalg.eigvalsh(c).clamp(min=0)) for c in covs]
    return Step(
        sequence,
        layer,
        moved,
        turned,
        mean_error=_size(law.mean - mean) / moved,
        mean_error_uniform=_size(known.mean + alike - mean) / moved,
        cov_error=_size(law.cov - cov) / turned,
        token_error=_rms(motion - field) / _rms(motion),
        token_error_uniform=_rms(motion - alike) / _rms(motion),
        token_error_together=_rms(motion - motion.mean(0)) / _rms(motion),
        mean_relative=_size(law.mean - mean) / _size(mean),
        cov_relative=_size(law.cov - cov) / _size(cov),
        cov_relative_still=turned / _size(cov),
        anisotropy_before=shapes[0],
        anisotropy_after=shapes[1],
        anisotropy_predicted=shapes[2],
        rank_before=ranks[0],
        rank_after=ranks[1],
        rank_predicted=ranks[2],
        **_drawn(after, cov, (known.mean, mean, law.mean), covs),
    )


def reading(sequence: int, model: Model, layer: int, ids: Int[Tensor, " n"]) -> Reading | Absent:
    """What the attention of a layer reads."""
    if not model.attends(layer):
        return Absent(layer, "reading", "it has no attention")
    try:
        heard = model.tap(layer, ids)
    except ValueError:
        return Absent(layer, "reading", "its attention cannot be heard")
    n, sums = len(ids), heard.column_sums
    sink = int(sums.mean(0).argmax())
    read = (heard.coupling > 0).any(0).sum(-1).double().clamp(min=1)
    return Reading(
        sequence=sequence,
        layer=layer,
        sink=sink,
        text=model.pieces(ids[sink : sink + 1])[0],
        share=float(sums.mean(0)[sink] / n),
        heads_there=float((heard.sinks == sink).double().mean()),
        entropy=float(heard.entropy.mean()),
        uniform=float(read.log().mean()),
        largest_score=float(heard.largest_score.max()),
    )


def _drawn(
    after: Float[Tensor, "n d"],
    cov: Float[Tensor, "d d"],
    means: tuple[Tensor, ...],
    covs: tuple[Tensor, ...],
) -> dict[str, Any]:
    """Before, after and predicted, in the plane of the two largest variances after."""
    plane = torch.linalg.eigh(cov).eigenvectors[:, -2:].flip(-1)
    return {
        "points": (after @ plane).numpy(),
        "means": torch.stack([m @ plane for m in means]).numpy(),
        "covs": torch.stack([plane.mT @ c @ plane for c in covs]).numpy(),
    }


def _between_gaussians(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> float:
    laws = [Gaussian(mu.mean(), mu.cov()) for mu in (Particles(x), Particles(y))]
    return wasserstein(laws[0], laws[1])


def _rms(moves: Float[Tensor, "n d"]) -> float:
    return max(float(moves.square().sum(-1).mean().sqrt()), TINY)


def _size(value: Tensor) -> float:
    return max(float(torch.linalg.vector_norm(value)), TINY)
