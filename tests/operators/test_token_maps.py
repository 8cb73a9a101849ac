"""Small maps of each token are the matrices that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.operators.token_maps import Normed, Pairs, TokenMap


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def matrices(pairs: Pairs) -> Tensor:
    n, k = pairs.own.shape
    return pairs(torch.eye(k, dtype=torch.float64)[:, None].expand(k, n, k)).permute(1, 2, 0)


@pytest.mark.parametrize("neighbours", [False, True])
def test_pairs_are_found_in_matrices_and_undone(neighbours: bool) -> None:
    """Coordinates (r, r + k/2) or (2r, 2r + 1), and some that do not turn."""
    rotary = matrices(Pairs.rotary(draw(3), 5))
    whole = torch.eye(8, dtype=torch.float64).repeat(5, 1, 1)
    whole[:, :6, :6] = rotary
    order = torch.tensor([0, 3, 1, 4, 2, 5, 6, 7]) if neighbours else torch.arange(8)
    whole = whole[:, order][..., order] * draw(8)[:, None]
    found = Pairs.of(whole)
    assert found is not None
    torch.testing.assert_close(matrices(found), whole)
    z = draw(2, 5, 8)
    torch.testing.assert_close(found.undone(found(z)), z)
    torch.testing.assert_close(found.transposed(z), (whole.mT @ z[..., None])[..., 0])
    assert Pairs.of(whole + 0.1 * draw(5, 8, 8)) is None


def test_pairs_are_found_where_one_direction_is_never_seen() -> None:
    """A LayerNorm takes the mean out, so that matrices are known on what is left alone."""
    pairs = Pairs.rotary(draw(3), 5)
    centred = torch.eye(6, dtype=torch.float64) - 1 / 6
    found = Pairs.of(matrices(pairs) @ centred, centred)
    assert found is not None
    torch.testing.assert_close(matrices(found) @ centred, matrices(pairs) @ centred)
    assert torch.equal(found.partner, pairs.partner)


def test_a_number_from_elsewhere_stands_in_for_the_own() -> None:
    away, toward, z, y = draw(3, 4, 6), draw(3, 4, 6) + 1, draw(3, 4, 6) + 2, draw(3, 4, 6) - 1
    own, other = Normed(draw(3, 4, 1), away, toward), Normed(draw(3, 4, 1), away, None)
    number = (toward * z).sum(-1, keepdim=True)
    torch.testing.assert_close(own(z), other(z, number))
    back, pulled = other.transposed(y)
    assert pulled is not None
    torch.testing.assert_close(own.transposed(y)[0], back + pulled * toward)


def test_normed_is_the_derivative_of_a_norm() -> None:
    gain, u, tangent = draw(6) + 2, draw(3, 4, 6), draw(3, 4, 6) + 1

    def norm(u: Tensor) -> Tensor:
        return gain * u / (u.square().mean(-1, keepdim=True) + 0.1).sqrt()

    value, change = torch.func.jvp(norm, (u,), (tangent,))
    size = (u.square().mean(-1, keepdim=True) + 0.1).sqrt()
    made = Normed(1 / size, value, value * gain**-2 / 6)
    torch.testing.assert_close(made(gain * tangent), change)
    turn = Pairs.rotary(draw(3), 4)
    both, y = TokenMap(turn, made), draw(3, 4, 6)
    pulled = torch.func.vjp(lambda u: turn(norm(u)), u)[1](y)[0]
    torch.testing.assert_close(gain * both.transposed(y)[0], pulled)
    index = torch.tensor([2, 0])
    torch.testing.assert_close(both.of(index)(tangent[index]), both(tangent)[index])


@pytest.mark.parametrize("partner", [[2, 3, 0, 1, 4], [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]])
def test_pairs_are_the_matrices_that_they_say(partner: list[int]) -> None:
    """In halves, of which slices are copied, and side by side, where numbers are."""
    k = len(partner)
    turns = torch.tensor([float(r != other) for r, other in enumerate(partner)])
    pairs = Pairs(draw(3, k), draw(3, k) * turns, torch.tensor(partner))
    dense = torch.diag_embed(pairs.own)
    dense[:, range(k), partner] += pairs.other
    z = draw(2, 3, k)
    assert torch.allclose(pairs(z), torch.einsum("nrc,gnc->gnr", dense, z))
    assert torch.allclose(pairs.transposed(z), torch.einsum("nrc,gnr->gnc", dense, z))
