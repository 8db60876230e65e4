"""Lower bounds from datasets in which everybody else holds one record: laws, brute force, order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from brute_force import hockey_stick, shuffled_law

from shuffle_plugins.accounting import Blanket, Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.pairs import slots
from shuffle_plugins.accounting.pairs.reports import product_atoms, read_coarsely, two_level_atoms
from shuffle_plugins.accounting.pairs.shuffle import alike_pair
from shuffle_plugins.accounting.pairs.slots import SlotPair, listed_outcomes, slot_losses_from_below
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.privunit import caps_at_angle


def channel_atoms(channel: np.ndarray) -> tuple[tuple[float, float, float], ...]:
    """Rows: the laws of x, x' and z."""
    x, other, z = channel
    return tuple(zip((x / z - 1).tolist(), (other / z - 1).tolist(), z.tolist(), strict=True))


def profile(p: np.ndarray, q: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() for e in epsilons])


@pytest.mark.parametrize(("population", "cohort"), [(4, 4), (5, 3)])
def test_atoms_give_the_dataset_exactly(population: int, cohort: int) -> None:
    rng = np.random.default_rng(population)
    channel = rng.dirichlet(np.ones(4), size=3) + 0.05
    channel /= channel.sum(axis=1, keepdims=True)
    laws = [shuffled_law(channel, (held, *[2] * (population - 1)), cohort=cohort) for held in (0, 1)]
    _, p, q = slot_losses_from_below(
        alike_pair(channel_atoms(channel), population=population, slots=cohort, participation=1.0)
    )
    for epsilon in np.linspace(-1, 1.5, 7):
        assert profile(p, q, np.array([epsilon]))[0] == pytest.approx(hockey_stick(*laws, epsilon), rel=1e-10)


def told(pair: SlotPair) -> tuple[np.ndarray, ...]:
    return slots.bundle_losses_from_below(
        atoms=pair.atoms, slots=pair.slots, changed=1, participation=pair.slots / pair.population
    )


@pytest.mark.parametrize("count", [1, 40, 80])
@pytest.mark.parametrize("local_epsilon", [0.01, 1.2, 6.0])
def test_what_tests_accept_is_below_the_law_of_all_outcomes_and_near_it(
    count: int, local_epsilon: float
) -> None:
    e = math.exp(local_epsilon)
    mass = 0.4 / (e + 1)
    pair = SlotPair(
        population=2 * count,
        slots=count,
        atoms=(
            (e - 1, 0.0, mass),
            (0.0, e - 1, mass),
            (1 / e - 1, 0.0, mass * e),
            (0.0, 1 / e - 1, mass * e),
            (0.0, 0.0, 0.2),
        ),
    )
    _, p, q = told(pair)
    losses, exact_p, exact_q, left_out = listed_outcomes(pair)
    assert left_out < 1e-29
    epsilons = np.linspace(0, 5, 25) * math.sqrt(exact_q @ losses**2)
    exact = profile(exact_p, exact_q, epsilons)
    for found in (profile(p, q, epsilons), profile(q, p, epsilons)):
        assert np.all(found <= exact * (1 + 1e-12))
        assert np.all(found[exact > 1e-8] >= 0.9 * exact[exact > 1e-8])


def test_products_and_levels_are_laws() -> None:
    atoms = product_atoms(likely=(0.7, 0.6, 0.9), held=(-1, 0, 1))
    for each in (
        atoms,
        two_level_atoms(local_epsilon=1.0, shares={(1, 0, 0): 0.1, (0, 1, 0): 0.1, (0, 0, 1): 0.1}),
        read_coarsely(*map(np.array, zip(*atoms, strict=True))),
    ):
        u, v, mass = map(np.array, zip(*each, strict=True))
        assert mass.sum() == pytest.approx(1, abs=1e-14)
        assert u @ mass == pytest.approx(0, abs=1e-12)
        assert v @ mass == pytest.approx(0, abs=1e-12)
    # The product itself: eight patterns of signs.
    patterns = np.array(np.meshgrid(*[(1, -1)] * 3)).reshape(3, -1).T
    up = np.array((0.7, 0.6, 0.9))
    laws = [
        np.prod((1 + patterns * np.array(held) * (2 * up - 1)) / 2, axis=1)
        for held in ((1, 1, 1), (-1, -1, -1), (-1, 0, 1))
    ]
    u, v, mass = map(np.array, zip(*atoms, strict=True))
    assert mass @ (u - v) ** 2 == pytest.approx(((laws[0] - laws[1]) ** 2 / laws[2]).sum(), rel=1e-12)


def test_many_signs_are_read_coarsely() -> None:
    """At equal means, and with nearly all that they tell."""
    likely = tuple(np.linspace(0.55, 0.9, 7).tolist())
    held = (1, -1, 0, 1, -1, 0, 1)
    u, v, mass = map(np.array, zip(*product_atoms(likely=likely, held=held), strict=True))
    assert 1 < len(mass) <= 802
    assert mass.sum() == pytest.approx(1, abs=1e-14)
    assert u @ mass == pytest.approx(0, abs=1e-12)
    assert v @ mass == pytest.approx(0, abs=1e-12)
    patterns = np.array(list(itertools.product((1, -1), repeat=7)))
    one, two, third = (
        np.prod((1 + patterns * sign * (2 * np.array(likely) - 1)) / 2, axis=1)
        for sign in (1, -1, np.array(held))
    )
    exact = ((one - two) ** 2 / third).sum()
    assert 0.999 * exact < mass @ (u - v) ** 2 <= exact * (1 + 1e-12)


def test_bad_atoms_are_refused() -> None:
    law = {"local_epsilon": 1.0, "differing": 1 / (math.e + 1)}
    odd = (((math.nan, 0.0, 1.0),), ((0.0, 0.0, math.nan),), ((math.inf, 0.0, 0.0), (0.0, 0.0, 1.0)))
    for atoms in (((0.1, 0.0, 1.0),), ((-2.0, 0.0, 0.5), (2.0, 0.0, 0.5)), ((0.0, 0.0, 0.5),), *odd):
        with pytest.raises(ValueError, match="instance"):
            Blanket(**law, instances=(atoms,))


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.FULL, Sampling.EPOCH])
def test_an_instance_is_below_the_blanket_however_clients_are_drawn(sampling: Sampling) -> None:
    e = math.exp(1.0)
    atoms = ((e - 1, 0.0, 1 / (e + 1)), (1 / e - 1, 0.0, e / (e + 1)))
    cohort = 2_000 if sampling is Sampling.FULL else 500
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=1.0,
            population=2_000,
            cohort=cohort,
            sampling=sampling,
            mechanism="two",
            blanket=Blanket(local_epsilon=1.0, differing=1 / (e + 1), exact=False, instances=(atoms,)),
        ),
        num_steps=20,
    )
    generic = ShuffleAccountant()
    generic.step(
        ShuffleRound(local_epsilon=1.0, population=2_000, cohort=cohort, sampling=sampling), num_steps=20
    )
    interval, other = accountant.epsilon(1e-6), generic.epsilon(1e-6)
    assert 0 < interval.lower <= interval.upper
    binary = next(bound for bound in generic.bounds(1e-6) if bound.name.startswith("binary-RR"))
    assert interval.lower == pytest.approx(binary.epsilon, rel=2e-3)
    assert other.lower >= interval.lower * (1 - 2e-3)


def test_caps_overlap_as_sampled() -> None:
    rng = np.random.default_rng(5)
    for dim in (2, 3, 8):
        v = rng.normal(size=(200_000, dim))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for threshold, angle in ((0.2, 2.0), (0.5, 1.2)):
            other = v[:, :2] @ [math.cos(angle), math.sin(angle)]
            share = ((v[:, 0] >= threshold) & (other >= threshold)).mean()
            assert caps_at_angle(threshold, angle=angle, dim=dim) == pytest.approx(share, abs=0.006)


CLEAR = (
    (3e5, 20.0, 1e-6),
    (2e4, -0.4, 2e-6),
    (-0.4, 5e4, 3e-6),
)


def closed(atoms: tuple[tuple[float, float, float], ...]) -> tuple[tuple[float, float, float], ...]:
    """With one more atom, that makes all masses together one and the means zero."""
    u, v, mass = map(np.array, zip(*atoms, strict=True))
    rest = 1 - mass.sum()
    return (*atoms, (-(u @ mass) / rest, -(v @ mass) / rest, rest))


def test_reports_of_enormous_weight_are_read_as_clear_or_not() -> None:
    """With few such reports, and below the law of all kinds of reports."""
    for atoms, least in (((CLEAR[0], CLEAR[2]), 1 - 1e-9), ((*CLEAR, (3.0, 1.0, 1e-3)), 0.2)):
        pair = SlotPair(population=25, slots=20, atoms=closed(atoms))
        read = slots._clearest(pair)
        assert read is not None
        assert len(read.atoms) == 3
        _, p, q, _ = listed_outcomes(read)
        _, exact_p, exact_q, _ = listed_outcomes(pair)
        epsilons = np.linspace(-9, 7, 17)
        for found, exact in (
            (profile(p, q, epsilons), profile(exact_p, exact_q, epsilons)),
            (profile(q, p, epsilons), profile(exact_q, exact_p, epsilons)),
        ):
            assert np.all(found <= exact * (1 + 1e-12))
            assert np.all(found >= least * exact)


@pytest.mark.parametrize(
    ("dim", "local_epsilon", "population", "cohort", "least"),
    [(1, 27.0, 20, 20, 23.8), (1, 16.0, 10**7, 10**5, 0.9), (100, 11.0, 2_000, 20, 3.2)],
)
def test_few_reports_of_a_large_local_epsilon_have_a_lower_end(
    dim: int, local_epsilon: float, population: int, cohort: int, least: float
) -> None:
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            mechanism="laplace",
            blanket=registry.blanket("laplace", local_epsilon=local_epsilon, dim=dim),
        )
    )
    found = accountant.epsilon(1e-6)
    assert least < found.lower <= found.upper
