"""The settings are the authors': every attention of the covariance figures against the right-hand
side of its equation, written out; the matrices are drawn as they draw them; intervals are right.
"""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.attention import Attention
from attnscope.measures import Gaussian
from attnscope.studies.papers import _draws as draws
from attnscope.studies.papers._covariances import cone, grid, normal, scores, single, two_heads
from attnscope.studies.papers._figure import drawn, every, falls, share, slope
from attnscope.studies.papers.explosion import Explosion, ExplosionConfig
from attnscope.studies.papers.line import row
from attnscope.studies.papers.plane import Plane, PlaneConfig
from attnscope.studies.papers.rank_histogram import VALUES, _problem, settled_rank
from attnscope.studies.papers.to_zero import ToZero, ToZeroConfig

EYE = torch.eye(2, dtype=torch.float64)


def matrix_of(attention: Attention, cov: torch.Tensor) -> torch.Tensor:
    """B of the velocity Bx on N(0, cov)."""
    return attention.affine(Gaussian(torch.zeros(len(cov), dtype=cov.dtype), cov)).matrix


def test_every_attention_has_the_scaling_of_the_authors(generator: torch.Generator) -> None:
    q, k, v, z = (normal(generator, 2, 2) for _ in range(4))
    cov, a = z @ z.mT, k.mT @ q
    made = single(q, k, v)
    assert torch.allclose(matrix_of(made["softmax"], cov), v @ cov @ a / math.sqrt(2))
    inverse = torch.linalg.inv(EYE + 2 * cov @ k.mT @ k)
    expected = v @ inverse @ (2 * cov @ a / math.sqrt(2))
    assert torch.allclose(matrix_of(made["L2"], cov), expected)
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.sqrt() @ vectors.mT
    inner, turned = torch.linalg.eigh(EYE + 4 * root @ a @ cov @ a.mT @ root)
    r = (EYE + turned * inner.sqrt() @ turned.mT) / 2
    expected = v @ root @ torch.linalg.inv(r) @ root @ a
    assert torch.allclose(matrix_of(made["Sinkhorn"], cov), expected)
    heads = sum(torch.outer(EYE[h], v[h]) @ cov @ torch.outer(k[h], q[h]) for h in range(2))
    assert torch.allclose(matrix_of(two_heads(q, k, v), cov), heads)


def test_the_two_heads_are_not_softmax_at_another_speed() -> None:
    made = ToZero().attentions(ToZeroConfig())
    cov = torch.tensor([[0.7, 0.2], [0.2, 0.3]], dtype=torch.float64)
    one, two = (matrix_of(made[name], cov) for name in ("softmax", "two heads"))
    cosine = (one * two).sum() / torch.linalg.matrix_norm(one) / torch.linalg.matrix_norm(two)
    assert abs(float(cosine)) < 0.99


@pytest.mark.parametrize("seed", range(5))
def test_values_to_zero_are_a_gram_matrix_and_keys_minus_queries(seed: int) -> None:
    generator = drawn(seed)
    q = torch.rand(2, 2, dtype=torch.float64, generator=generator)
    r = normal(generator, 2, 2)
    heads = ToZero().attentions(ToZeroConfig(seed=seed))["Sinkhorn"].heads
    assert torch.allclose(heads.a[0], -q.mT @ q)
    assert torch.allclose(heads.value[0], r @ r.mT)


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_positive_where_they_explode_and_queries_are_not_keys(seed: int) -> None:
    heads = Explosion().attentions(ExplosionConfig(seed=seed))["softmax"].heads
    assert torch.linalg.eigvalsh(heads.a[0] + heads.a[0].mT).min() > 0
    assert not torch.allclose(heads.query, heads.key)
    assert torch.equal(heads.value[0], EYE)


@pytest.mark.parametrize("draw", range(5))
def test_scores_of_the_draws_are_indefinite_and_every_draw_is_another(draw: int) -> None:
    made, other = (draws.attentions(0, number)["softmax"].heads for number in (draw, draw + 1))
    low, high = torch.linalg.eigvalsh(made.a[0] + made.a[0].mT)
    assert low < 0 < high
    assert not torch.allclose(made.value, other.value)
    q, _ = scores(drawn(0, draw), False)
    assert torch.equal(made.query[0], q)


@pytest.mark.parametrize("dim", [3, 4, 5])
def test_values_of_the_histograms_are_symmetric_and_positive(dim: int) -> None:
    for name in ("softmax", "L2"):
        attention, start = _problem(name, VALUES[1], dim, drawn(0))
        v = attention.heads.value[0]
        assert torch.allclose(v, v.mT)
        assert torch.linalg.eigvalsh(v).min() > 0
        assert torch.linalg.eigvalsh(start).min() > 0
        values = torch.linalg.eigvalsh(attention.heads.a[0])
        assert int((values < -1e-12).sum()) == dim // 2
        assert values.max() < 1e-12
    plain = _problem("softmax", VALUES[0], dim, drawn(0))[0].heads
    assert torch.equal(plain.value[0], torch.eye(dim, dtype=torch.float64))


def test_the_second_head_of_the_plane_is_empty() -> None:
    heads = Plane().attentions(PlaneConfig())["two heads, one empty"].heads
    q = row(0)[0]
    assert float(q.norm()) == pytest.approx(1)
    assert torch.allclose(heads.a[0], -torch.outer(q, q))
    assert torch.equal(heads.a[1], torch.zeros(2, 2, dtype=torch.float64))


def test_starts_have_unit_trace_and_lie_in_the_cone() -> None:
    side = [2 * place / 19 - 1 for place in range(20)]
    inside = sum(u * u + w * w < 1 for u in side for w in side)
    for points, limit, count in ((10, 0.5, 100), (20, 1.0, inside), (1, 1.0, 1)):
        starts = grid(points, limit)
        entry = torch.stack([starts[:, 0, 0], starts[:, 0, 1], starts[:, 1, 1]], dim=-1)
        x, y, z = torch.from_numpy(cone(entry.numpy())).unbind(-1)
        assert len(starts) == count
        assert torch.allclose(z, torch.ones_like(z))
        assert (torch.hypot(x, y) < 1).all()
        assert torch.linalg.eigvalsh(starts).min() > 0
    with pytest.raises(ValueError, match=r"a limit in \(0, 1\]"):
        grid(3, 2.0)


def test_verdicts_are_put_together_as_they_should_be() -> None:
    assert every([True, True]) is True
    assert every([True, None]) is None
    assert every([None, False, True]) is False
    assert every([]) is None
    assert falls(1e-4, 1.0, 1e-3) is True
    assert falls(0.1, 1.0, 1e-3) is None
    assert falls(0.9, 1.0, 1e-3) is False


def test_intervals_are_those_of_the_textbook() -> None:
    high = 1 - 0.025 ** (1 / 10)  # Clopper-Pearson with no success: (1 - p)^10 = 2.5 %
    assert share(0, 10) == f"0 of 10 (0.00 to {high:.2f})"
    exact = slope([1, 10, 100], [5.0, 0.5, 0.05])
    assert exact.value == pytest.approx(-1)
    assert exact.sign() is True
    assert slope([1, 2, 4, 8], [1.0, 3.0, 1.0, 3.0]).sign() is None
    assert slope([1, 2], [2.0, 1.0]).sign() is None


def test_the_rank_counts_what_has_stopped_falling() -> None:
    def rank(*pairs: tuple[float, float]) -> tuple[int, bool]:
        before, end = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        return settled_rank(before, end)

    # one that fell early, one that falls late, three that stay: no gap of the spectrum tells
    late = (3e-11, 3e-12), (4e-4, 4e-5), (7e-2, 7e-2), (0.4, 0.4), (4.0, 4.0)
    assert rank(*late) == (3, True)
    assert rank((0.2, 0.1), (1.0, 1.0)) == (1, False)
    assert rank((1.0, 0.9), (1.0, 1.0)) == (2, True)
    # a start that is almost singular: small is not zero while it stays, and zero only as noise
    assert rank((1.7e-7, 1.7e-7), (1.9, 1.9)) == (2, True)
    assert rank((1e-12, 1e-12), (1.9, 1.9)) == (1, True)
