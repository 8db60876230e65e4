"""ProjUnit: the projections, what clipping folded rows costs, and the variance."""

import math

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.projunit import Folding
from shuffle_plugins.randomness import SeededRandomness

EPSILONS = [1e-4, 1.5, 50.0]
SHAPES = [(1, 1), (7, 7), (7, 2), (80, 16), (300, 64), (64, 63), (1500, 50)]


def matrices(folding):
    """W_b for every pattern, (patterns, size, dim)."""
    eye = Rows(torch.eye(folding.dim, dtype=torch.float64))
    ones = torch.ones(folding.dim, dtype=torch.float64)
    return torch.stack(
        [
            folding.project(eye, torch.full((folding.dim,), pattern), factors=ones).T
            for pattern in range(folding.patterns)
        ]
    )


@pytest.mark.parametrize(("dim", "size"), SHAPES)
@first_fast("seed", [0, 5])
def test_projections_average_to_the_identity_exactly(dim, size, seed):
    folding = Folding(dim=dim, size=size, seed=seed)
    w = matrices(folding)
    mean = torch.einsum("bki,bkj->ij", w, w) / folding.patterns
    torch.testing.assert_close(mean, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dim", "size"), SHAPES)
def test_unfolding_is_the_transpose(dim, size):
    folding = Folding(dim=dim, size=size, seed=1)
    w = matrices(folding)
    sums = torch.randn(folding.patterns, size, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(folding.unfold(sums), torch.einsum("bki,bk->i", w, sums))
    patterns = torch.arange(folding.patterns)
    torch.testing.assert_close(folding.unfold_each(sums, patterns), torch.einsum("bki,bk->bi", w, sums))


def test_each_client_is_folded_by_its_own_pattern_and_scaled():
    folding = Folding(dim=300, size=20, seed=1)
    rows = torch.randn(40, 300, generator=torch.Generator().manual_seed(1))
    patterns = torch.arange(40) % folding.patterns
    factors = torch.linspace(0.1, 1, 40)
    folded = folding.project(Rows([rows[:, :50], rows[:, 50:]]), patterns, factors=factors)
    expected = torch.einsum("nki,ni->nk", matrices(folding)[patterns], rows.double() * factors.unsqueeze(1))
    torch.testing.assert_close(folded.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("dim", "size"), SHAPES)
def test_rows_well_inside_are_unbiased_exactly(dim, size, epsilon):
    mechanism = get("projunit", local_epsilon=epsilon, dim=dim, radius=0.5, projected_dim=size, slack=30.0)
    rows = torch.randn(6, dim, generator=torch.Generator().manual_seed(2))
    rows = mechanism.clip(rows)
    torch.testing.assert_close(mechanism.expectation(rows).float(), rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["normal", "comb"])
def test_the_bias_of_clipping_is_as_small_as_is_said(kind):
    """Averaged over public seeds a row on the boundary loses about σ(φ(z) - zQ(z)) of itself, z the slack.

    Also one whose large entries all meet where it is folded.
    """
    dim, size = 2048, 256
    row = torch.randn(1, dim, generator=torch.Generator().manual_seed(3)).double()
    row = row if kind == "normal" else (torch.arange(dim) % size == 3).double().unsqueeze(0)
    row /= row.norm()
    for slack, mills in ((0.0, 0.39894), (1.0, 0.083315), (3.0, 3.8215e-4)):
        lost = []
        for seed in range(60):
            mechanism = get(
                "projunit", local_epsilon=2.0, dim=dim, projected_dim=size, slack=slack, seed=seed
            )
            lost.append(1 - float(mechanism.expectation(row)[0] @ row[0]))
        average = sum(lost) / len(lost)
        assert average <= 2 * mills / math.sqrt(2 * size) + 1e-9
        if slack < 3:
            assert average >= 0.5 * mills / math.sqrt(2 * size)


def test_expectation_is_what_reports_average_to_where_clipping_bites():
    mechanism = get("projunit", local_epsilon=50.0, dim=24, projected_dim=3, slack=0.0)
    row = torch.randn(1, 24, generator=torch.Generator().manual_seed(4))
    row /= row.norm()
    expected = mechanism.expectation(row).squeeze(0)
    assert float((expected - row).norm()) > 0.1
    source = SeededRandomness(1)
    means = torch.stack(
        [
            mechanism.aggregate(mechanism.randomize(row.expand(4000, 24), clip=True, randomness=source))
            for _ in range(40)
        ]
    ).double()
    spread = means.std(dim=0) / 40**0.5
    assert float(((means.mean(dim=0) - expected) / spread).abs().max()) < 5


def test_without_folding_it_is_privunit():
    rows = torch.randn(20, 9, generator=torch.Generator().manual_seed(1)) / 3
    for dim in (1, 9):
        own = get("projunit", local_epsilon=2.0, dim=dim)
        reference = get("privunit", local_epsilon=2.0, dim=dim)
        assert own.blanket() == reference.blanket()
        assert own.worst_variance == pytest.approx(reference.worst_variance, rel=1e-9)
        assert own._inner.radius == reference.radius
        estimate = own.expectation(own.clip(rows[:, :dim]))
        torch.testing.assert_close(estimate.float(), own.clip(rows[:, :dim]))
