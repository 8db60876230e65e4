"""PrivUnit's reports and the shortcut to their sum: the same law, and exact identities."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import special, stats

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.privunit import sum_of_units
from shuffle_plugins.randomness import SeededRandomness

DIM = 12
P_VALUE = 1e-4


def inner_product_cdf(a, *, parameters, share):
    """CDF of ⟨V, x/‖x‖⟩ when the cap is around +x with probability ``share``, else around -x."""
    d, s, c = parameters.dim, parameters.tails[0], parameters.plain_probability
    below = 0.5 + 0.5 * np.sign(a) * special.betainc(0.5, (d - 1) / 2, a * a)
    upper_cap = np.clip(1 - (1 - below) / s, 0, 1)
    lower_cap = np.clip(below / s, 0, 1)
    return c * below + (1 - c) * (share * upper_cap + (1 - share) * lower_cap)


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("dim", [2, 3, 20, 2_000])
@pytest.mark.parametrize("length", [0.2, 1.0])
def test_reports_follow_the_stated_density(dim, epsilon, length):
    mechanism = get("privunit", local_epsilon=epsilon, dim=dim)
    direction = torch.ones(dim) / dim**0.5
    clients = 10_000 if dim < 100 else 1_000
    reports = mechanism.randomize((length * direction).expand(clients, dim), randomness=SeededRandomness(3))
    vectors = reports.fields[0].values
    assert torch.allclose(vectors.norm(dim=1), torch.ones(clients), atol=1e-5)
    along = (vectors @ direction).double().numpy()
    share = (1 + length) / 2
    law = stats.kstest(along, lambda a: inner_product_cdf(a, parameters=mechanism.parameters, share=share))
    assert law.pvalue > P_VALUE
    if dim > 2:
        across = vectors - torch.outer(vectors @ direction, direction)
        across /= across.norm(dim=1, keepdim=True)
        probe = torch.zeros(dim)
        probe[0], probe[1] = 2**-0.5, -(2**-0.5)
        b = (across @ probe).double().numpy()
        uniform = stats.kstest(
            b, lambda v: 0.5 + 0.5 * np.sign(v) * special.betainc(0.5, (dim - 2) / 2, np.minimum(v * v, 1.0))
        )
        assert uniform.pvalue > P_VALUE


@pytest.mark.parametrize("dim", [2, 4, 50])
def test_zero_rows_report_the_uniform_law(dim):
    """Along the axes, along the public direction that stands in for a client's, and along any other."""
    mechanism = get("privunit", local_epsilon=6.0, dim=dim)
    vectors = mechanism.randomize(torch.zeros(20_000, dim), randomness=SeededRandomness(3)).fields[0].values
    others = torch.stack([torch.ones(dim), torch.linspace(-1, 2, dim)]).double()
    probes = torch.cat([torch.eye(dim).double()[:4], torch.nn.functional.normalize(others, dim=1)])
    for column in (vectors.double() @ probes.T).numpy().T:
        squared = np.minimum(column**2, 1)
        law = 0.5 + 0.5 * np.sign(column) * special.betainc(0.5, (dim - 1) / 2, squared)
        assert stats.kstest(law, "uniform").pvalue > P_VALUE
    products = (vectors[:, 0] * vectors[:, 1]).double().numpy()
    assert abs(products.mean()) < 5 * products.std() / 20_000**0.5


def generic_rows():
    return torch.randn(9, DIM, generator=torch.Generator().manual_seed(4))


def repeated_rows():
    rows = generic_rows()
    rows[1] = 3 * rows[0]
    rows[2] = -rows[0]
    rows[3] = rows[0] + 1e-4 * rows[3]
    return rows


def dependent_rows():
    rows = generic_rows()
    return rows @ torch.diag((torch.arange(DIM) < 2).float())


def rows_with_zeros():
    rows = generic_rows()
    rows[[2, 8]] = 0
    return rows


ROWS = [(generic_rows, 4), (repeated_rows, 6), (dependent_rows, 5), (rows_with_zeros, 6)]  # and chunks


def fixed_draws(rows, *, uniform_share=0.3, seed=5):
    generator = torch.Generator().manual_seed(seed)
    along = torch.rand(len(rows), generator=generator, dtype=torch.float64) * 1.6 - 0.8
    uniform = torch.rand(len(rows), generator=generator) < uniform_share
    return {"along": along, "plain": uniform | (rows.norm(dim=1) == 0)}


@cache
def shortcut_sums(make, *, chunk):
    """Sums by the shortcut, drawn once for all tests of them."""
    rows, source = make(), SeededRandomness(6)
    draws = fixed_draws(rows)
    batch = Rows([rows[:, :5], rows[:, 5:]])
    norms = batch.l2_norm()
    return torch.stack(
        [sum_of_units(batch, norms, **draws, chunk=chunk, randomness=source) for _ in range(600)]
    )


def literal_sums(rows, draws, *, count, seed=7):
    leaning, along = (~draws["plain"]).unsqueeze(1), draws["along"].unsqueeze(1)
    directions = torch.nn.functional.normalize(rows.double(), dim=1) * leaning
    normals = SeededRandomness(seed).normal((count, *rows.shape), dtype=torch.float64)
    across = normals - (normals * directions).sum(dim=2, keepdim=True) * directions
    across = torch.nn.functional.normalize(across, dim=2)
    along = along * leaning
    return (along * directions + (1 - along.square()).sqrt() * across).sum(dim=1)


def statistics_of(sums, rows):
    """Named samples of one number per sum: projections, norms, products."""
    directions = torch.nn.functional.normalize(rows.double(), dim=1)
    probe = torch.linspace(-1, 1, rows.shape[1], dtype=torch.float64)
    found = {f"client {i}": sums @ u for i, u in enumerate(directions) if u.norm() > 0}
    off_span = sums - sums @ torch.linalg.pinv(directions) @ directions
    found["probe"] = sums @ probe
    found["norm"] = sums.norm(dim=1)
    found["off the span"] = off_span.norm(dim=1)
    found["product"] = (sums @ directions[0]) * (sums @ directions[4])
    found["square of the probe"] = (sums @ probe).square() - (sums @ directions[5]).square()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("make", "chunk"), ROWS)
def test_the_shortcut_has_the_law_of_the_literal_sum(make, chunk):
    rows = make()
    draws = fixed_draws(rows)
    literal = statistics_of(literal_sums(rows, draws, count=1_200), rows)
    shortcut = statistics_of(shortcut_sums(make, chunk=chunk), rows)
    for name, sample in literal.items():
        if float(sample.std()) < 1e-5:
            assert float((shortcut[name] - sample.mean()).abs().max()) < 1e-4, name
        else:
            assert stats.ks_2samp(sample.numpy(), shortcut[name].numpy()).pvalue > P_VALUE, name


def added(rows, along, *, chunk):
    """The sum of reports that all lean, by these inner products."""
    batch, plain = Rows(rows), torch.zeros(len(rows), dtype=torch.bool)
    source = SeededRandomness(8)
    return sum_of_units(batch, batch.l2_norm(), along=along, plain=plain, chunk=chunk, randomness=source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 12, 5_000])
def test_one_client_has_exactly_its_norm_and_inner_product(dim, dtype):
    row = torch.linspace(-1, 2, dim, dtype=dtype).unsqueeze(0)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    for along in (-1.0, -0.2, 0.0, 0.7, 1.0):
        total = added(row, torch.tensor([along], dtype=torch.float64), chunk=1)
        assert float(total.norm()) == pytest.approx(1, abs=tolerance)
        assert float(total @ row[0].double() / row[0].double().norm()) == pytest.approx(along, abs=tolerance)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-12, 1.0, 1e12, 1e25, 1e34])
def test_equal_directions_add_up_their_inner_products_at_any_scale(scale):
    """Every report is orthogonal to the common direction but for its own part along it."""
    direction = torch.linspace(-1, 2, 200)
    rows = torch.outer(torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 7.0]) * scale, direction)
    along = torch.linspace(-0.5, 0.9, 6).double()
    found = added(rows, along, chunk=6) @ direction.double() / direction.double().norm()
    assert float(found) == pytest.approx(float(along.sum()), abs=1e-4)


def test_reports_without_a_random_part_are_added_exactly():
    rows = generic_rows().double()
    signs = torch.tensor([1.0, -1, 1, 1, -1, -1, 1, -1, 1]).double()
    expected = (torch.nn.functional.normalize(rows, dim=1) * signs.unsqueeze(1)).sum(dim=0)
    torch.testing.assert_close(added(rows, signs, chunk=4), expected)
