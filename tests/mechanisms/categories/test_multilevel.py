"""Several privacy levels from one report, and keys that let a category be recovered."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from scipy import stats
from scripted_randomness import exponential

from shuffle_plugins.core.reports import Reports
from shuffle_plugins.mechanisms import KeyLaw, MultilevelHadamard, RecoverableResponse
from shuffle_plugins.mechanisms.limited_hadamard import binary_entropy
from shuffle_plugins.randomness import SeededRandomness

LADDERS = [(1.0, 0.9), (1.0, 0.01), (2.0, 1.5, 1.0, 0.2), (50.0, 1e-4), (44.0, 43.5, 1e-9), (0.7,)]


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_level_keeps_to_its_epsilon_in_exact_arithmetic(ladder):
    flips = MultilevelHadamard(local_epsilons=ladder, dim=5).flip_probabilities
    for epsilon, flip in zip(ladder, flips, strict=True):
        assert 1 < (1 - flip) / flip <= exponential(epsilon)
        slack = flip - 1 / (exponential(epsilon) + 1)
        assert 0 <= slack < Fraction(1, 1 << 62)


@pytest.mark.parametrize("ladder", [(1.0, 0.9), (2.0, 1.5, 1.0, 0.2)])
def test_every_level_is_drawn_by_the_law_of_its_mechanism(ladder):
    levels = MultilevelHadamard(local_epsilons=ladder, dim=3)
    draws = 40_000
    made = levels.randomize(torch.full((draws,), 2), randomness=SeededRandomness(4))
    for place, level in enumerate(levels.levels):
        reports = levels.unlock(made.public, made.keys[:, place])
        every = level.outcomes()
        expected = level.log_likelihood(every, torch.tensor(2)).exp() * draws
        where = reports.fields[0].values.long() * 2 + reports.fields[1].values.long()
        seen = torch.bincount(where, minlength=len(every)).double()
        statistic = float(((seen - expected).square() / expected).sum())
        assert stats.chi2.sf(statistic, len(every) - 1) > 1e-4


def test_noise_between_levels_owes_nothing_to_what_an_analyst_has():
    """Given Y^j, the keys of the levels after it are independent of the category: a coalition learns Y^j."""
    levels = MultilevelHadamard(local_epsilons=(2.0, 1.0, 0.3), dim=3)
    draws = 60_000
    tables = []
    for category in (0, 2):
        made = levels.randomize(torch.full((draws,), category), randomness=SeededRandomness(40 + category))
        first = levels.unlock(made.public, made.keys[:, 0]).fields[1].values.long()
        between = (made.keys[:, 0] ^ made.keys[:, 1]).long() * 2 + made.keys[:, 1].long()
        table = torch.bincount(first * 4 + between, minlength=8).reshape(2, 4).double()
        tables.append(table)
        assert stats.chi2_contingency(table.numpy()).pvalue > 1e-4
    noise = torch.stack([table.sum(dim=0) for table in tables])
    assert stats.chi2_contingency(noise.numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("ladder", "together", "apart"),
    [
        ((1.0, 0.9), 1.098, 1.707),
        ((1.0, 0.5), 1.627, 1.796),
        ((1.0, 0.01), 1.840, 1.840),
        # Figure 7.10: ε1, and ε1 - 0.1j from the second level on
        ((2.0, *(2 - 0.1 * j for j in range(2, 11))), 2.127, 6.974),
    ],
)
def test_randomness_is_that_of_the_thesis(ladder, together, apart):
    levels = MultilevelHadamard(local_epsilons=ladder, dim=4)
    assert levels.randomness_bits == pytest.approx(together, abs=6e-4)
    assert levels.separate_randomness_bits == pytest.approx(apart, abs=6e-4)
    z = [1 / (math.exp(epsilon) + 1) for epsilon in ladder]
    steps = [z[0], *((b - a) / (1 - 2 * a) for a, b in itertools.pairwise(z))]
    assert levels.randomness_bits == pytest.approx(sum(map(binary_entropy, steps)), rel=1e-9)


def test_the_public_report_is_the_last_levels_and_goes_through_the_wire():
    levels = MultilevelHadamard(local_epsilons=(1.0, 0.5), dim=1000)
    made = levels.randomize(torch.arange(100), randomness=SeededRandomness(1))
    assert made.public.bits_per_report == levels.levels[-1].bits_per_report == 11
    assert not bool(made.keys[:, -1].any())
    again = Reports.from_bytes(made.public.to_bytes())
    assert torch.equal(levels.levels[-1].sum(again), levels.levels[-1].sum(made.public))
    one = levels.unlock(again, made.keys[:, 0])
    assert torch.equal(levels.unlock(one, made.keys[:, 0]).fields[1].values, made.public.fields[1].values)
    nobody = levels.randomize(torch.zeros(0, dtype=torch.int64))
    assert len(levels.unlock(nobody.public, nobody.keys[:, 0])) == 0


def test_bad_levels_and_keys_are_refused():
    for ladder in ((), (0.5, 1.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match="local_epsilons"):
            MultilevelHadamard(local_epsilons=ladder, dim=4)
    levels = MultilevelHadamard(local_epsilons=(1.0, 0.5), dim=4)
    made = levels.randomize(torch.arange(4))
    for key in (made.keys[:3, 0], torch.full((4,), 2, dtype=torch.uint8), made.keys):
        with pytest.raises(ValueError, match=r"key|category|categories"):
            levels.unlock(made.public, key)


@pytest.mark.parametrize(("categories", "saving"), [(2, 94.2), (4, 91.4), (10, 85.0)])
def test_savings_of_the_thesis(categories, saving):
    law = KeyLaw.shortest(local_epsilon=5.0, categories=categories)
    assert round(100 * law.saving, 1) == saving


@pytest.mark.parametrize("epsilon", [1e-9, 1e-5, 2e-4, 0.3, 1.0, 3.0, 8.0, 50.0, 500.0])
@pytest.mark.parametrize("categories", [2, 3, 7, 10, 100])
def test_the_shortest_key_is_the_shortest(categories, epsilon):
    law = KeyLaw.shortest(local_epsilon=epsilon, categories=categories)
    entropies = [
        KeyLaw(local_epsilon=epsilon, size=categories, heavy=s).entropy_bits for s in range(1, categories)
    ]
    assert law.entropy_bits == pytest.approx(min(entropies), rel=1e-12, abs=1e-300)
    assert -1e-12 <= law.saving <= 1


@pytest.mark.parametrize(
    ("epsilon", "categories", "size", "heavy"),
    [(0.5, 7, 8, 4), (0.5, 8, 16, 8), (1.0, 100, 2 * 64, 32), (3.0, 1000, 16 * 64, 32), (20.0, 10, 32, 1)],
)
def test_hadamard_response_as_a_recoverable_key(epsilon, categories, size, heavy):
    """B = 2^(ceil(log2 min(e^ε, 2k)) - 1), b = 2^ceil(log2(k/B + 1)), K = B·b, s = b/2."""
    law = KeyLaw.of_hadamard_response(local_epsilon=epsilon, categories=categories)
    assert (law.size, law.heavy) == (size, heavy)
    assert categories <= law.size <= 4 * categories
    shortest = KeyLaw.shortest(local_epsilon=epsilon, categories=categories)
    assert shortest.entropy_bits <= law.entropy_bits <= shortest.entropy_bits + 3


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 1.5, 5.0, 50.0])
@pytest.mark.parametrize("dim", [2, 3, 10, 1000])
def test_published_reports_keep_to_local_epsilon_and_keys_recover(dim, epsilon):
    mechanism = RecoverableResponse(local_epsilon=epsilon, dim=dim)
    logs = mechanism.key_log_likelihood(torch.arange(dim))
    assert float(logs.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert 1 < mechanism._mixture.odds <= exponential(epsilon)
    if epsilon < 40:
        assert float(logs.max() - logs.min()) == pytest.approx(epsilon, rel=1e-6, abs=1e-14)
        entropy = -float((logs.exp() * logs).sum()) / math.log(2)
        assert entropy == pytest.approx(mechanism.key_law.entropy_bits, rel=1e-7)
    x = torch.arange(500) % dim
    keys = mechanism.draw_keys(len(x), randomness=SeededRandomness(2))
    published = mechanism.hide(x, keys)
    assert torch.equal(mechanism.recover(published, keys), x)
    assert torch.equal(published, (x + keys) % dim)


@pytest.mark.parametrize("epsilon", [0.4, 2.0])
def test_keys_are_drawn_by_their_law(epsilon):
    mechanism = RecoverableResponse(local_epsilon=epsilon, dim=7)
    keys = mechanism.draw_keys(30_000, randomness=SeededRandomness(3))
    expected = mechanism.key_log_likelihood(torch.arange(7)).exp() * len(keys)
    seen = torch.bincount(keys, minlength=7)
    assert stats.chi2.sf(float(((seen - expected).square() / expected).sum()), 6) > 1e-4
