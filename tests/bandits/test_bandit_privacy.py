"""What is said about privacy: enumerated on tiny batches, and the noise as it is drawn."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.bandits import CentralModel, LocalModel, ShuffledModel, published_local_epsilon
from shuffle_plugins.bandits.privacy import laplace_width
from shuffle_plugins.mechanisms import blanket
from shuffle_plugins.mechanisms.noise import FINE_BITS, laplace_grid
from shuffle_plugins.randomness import SeededRandomness

ALLOWED = 1 + 1e-9


# -- the shuffle model, enumerated ------------------------------------------------------------------------


def sign_law(local_epsilon: float) -> dict[int, np.ndarray]:
    """Probabilities of the two reports of a reward -1, 0 or 1."""
    gain = math.tanh(local_epsilon / 2)
    return {reward: np.array([(1 - gain * reward) / 2, (1 + gain * reward) / 2]) for reward in (-1, 0, 1)}


def binned_laplace_law(local_epsilon: float) -> dict[int, np.ndarray]:
    """Probabilities that a Laplace report falls below -1, between -1 and 0, 0 and 1, or above 1."""
    grid = laplace_grid(local_epsilon=local_epsilon, dim=1, bits=FINE_BITS)
    unit, rate = grid.whole_radius, 1 / float(grid.scale)

    def below(steps: int) -> float:
        """Probability that the noise is at most so many steps."""
        if steps >= 0:
            return 1 - math.exp(-rate * (steps + 1)) / (1 + math.exp(-rate))
        return math.exp(rate * steps) / (1 + math.exp(-rate))

    law = {}
    for reward in (-1, 0, 1):
        edges = [0.0, *(below(at * unit - (at > 0) - reward * unit) for at in (-1, 0, 1)), 1.0]
        law[reward] = np.diff(edges)
    return law


def batch_law(
    channels: dict[int, np.ndarray], clients: list[tuple[int, ...]], slots: list[int]
) -> np.ndarray:
    """Law of the reports of all slots in order, when the shuffler puts the clients into the slots at random.

    ``clients[j][a]`` is what client j would reward action a with; ``slots[t]`` is the action of slot t.
    """
    total = 0.0
    for order in itertools.permutations(range(len(clients))):
        law = np.ones(())
        for slot, client in enumerate(order):
            law = np.multiply.outer(law, channels[clients[client][slots[slot]]])
        total = total + law
    return np.asarray(total).ravel() / math.factorial(len(clients))


@first_fast("mechanism", ["binary-rr", "laplace"], fast=2)
@first_fast("clients", [2, 3, 4], fast=2)
def test_a_shuffled_batch_leaks_no_more_than_is_certified(mechanism: str, clients: int) -> None:
    """Every δ at every ε, over random and extreme clients, for each kind of channel."""
    rng = np.random.default_rng(clients)
    laws = {"binary-rr": sign_law, "laplace": binned_laplace_law}
    closest = 0.0
    for local_epsilon in (0.5, 2.0):
        round_ = ShuffleRound(
            local_epsilon=local_epsilon,
            population=clients,
            cohort=1,
            sampling=Sampling.EPOCH,
            adversary=Adversary.MODEL_OBSERVER,
            mechanism=mechanism,
            blanket=blanket(mechanism, local_epsilon=local_epsilon, dim=1),
        )
        accountant = ShuffleAccountant()
        accountant.step(round_)
        epsilons = local_epsilon * np.array([0.05, 0.3, 0.6, 0.9])
        certified = [accountant.delta(epsilon).upper for epsilon in epsilons]
        channels = laws[mechanism](local_epsilon)
        for trial in range(40 if clients < 4 else 12):
            slots = sorted(rng.integers(2, size=clients).tolist())
            others = [tuple(row) for row in rng.integers(-1, 2, size=(clients - 1, 2)).tolist()]
            held, replaced = (
                tuple(rng.integers(-1, 2, size=2).tolist()),
                tuple(rng.integers(-1, 2, size=2).tolist()),
            )
            if trial < 4:  # a client that is opposed everywhere, among clients that agree with one side
                held, replaced = (1, 1), (-1, -1)
                others = [((1, 1), (-1, -1), (1, -1), (0, 0))[trial]] * (clients - 1)
            p = batch_law(channels, [held, *others], slots)
            q = batch_law(channels, [replaced, *others], slots)
            assert p.sum() == pytest.approx(1)
            for epsilon, bound in zip(epsilons, certified, strict=True):
                for one, other in ((p, q), (q, p)):
                    found = np.maximum(one - math.exp(epsilon) * other, 0).sum()
                    assert found <= bound * ALLOWED + 1e-12
                    closest = max(closest, found / bound)
    assert closest > 0.5  # the bound is not so far away that this could not fail


@pytest.mark.parametrize("mechanism", ["laplace", "binary-rr"])
@first_fast("reports", [1, 9, 120, 5_003, 900_000], fast=3)
def test_every_batch_is_certified_within_the_target(mechanism: str, reports: int) -> None:
    model = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism=mechanism)
    noise = model.noise(reports)
    assert noise.local_epsilon >= 0.5
    assert (noise.local_epsilon > 1) is (reports > 100)
    assert noise.epsilon.upper <= 0.5
    accountant = ShuffleAccountant()
    accountant.step(noise.randomizer.round(population=reports, cohort=1, sampling=Sampling.EPOCH))
    again = min(accountant.epsilon(1e-6, lower=False).upper, noise.local_epsilon)  # at the batch's own size
    assert again <= 0.5
    assert noise.epsilon.delta == 1e-6
    assert noise.epsilon.neighbouring_relation == "replace-one"


def test_the_accountant_allows_more_than_the_closed_form() -> None:
    certified = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr").noise(40_000)
    published = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr", bound="published").noise(40_000)
    assert certified.local_epsilon > 1.8 * published.local_epsilon > 1
    assert published.epsilon.upper == 0.5


@pytest.mark.parametrize("reports", [100, 30_000, 10**7])
def test_the_closed_form_is_inverted(reports: int) -> None:
    found = published_local_epsilon(epsilon=0.4, delta=1e-6, reports=reports)
    if found == 0.4:
        share = reports / (16 * math.log(2e6))
        silent = share <= 1 or math.log(share) < 0.4
        assert silent or shuffles.clone_bound(local_epsilon=0.4, cohort=reports, delta=1e-6) >= 0.4
        return
    assert shuffles.clone_bound(local_epsilon=found, cohort=reports, delta=1e-6) == pytest.approx(
        0.4, rel=1e-6
    )


# -- the central model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1 / 3, 0.37, 1.0, 8.0, 1e6])
def test_central_noise_is_calibrated_to_replaced_rewards(epsilon: float) -> None:
    """P[k] ∝ e^(-|k|/scale) and a reward moves one sum by at most 2·steps: the log-ratio is 2·steps/scale."""
    noise = CentralModel(epsilon=epsilon).noise(100)
    assert Fraction(2 * noise.steps) / noise.scale <= Fraction(epsilon)  # also as it is drawn
    assert noise.scale <= 1 << 30
    assert (noise.epsilon.upper, noise.epsilon.delta) == (epsilon, 0.0)


def test_two_neighbours_look_alike_to_whoever_sees_the_sums() -> None:
    """20,000 released sums of one reward, +1 against -1: no half-line tells them apart by more than e^ε."""
    noise, draws = CentralModel(epsilon=0.7).noise(1), 20_000
    sums = [
        noise.totals(
            np.full(draws, reward), places=np.arange(draws), played=draws, randomness=SeededRandomness(seed)
        )
        for seed, reward in enumerate((1.0, -1.0))
    ]
    ratios = []
    for edge in (-2.0, -1.0, 0.0, 1.0, 2.0):
        for side in (1, -1):
            p, q = ((side * found >= side * edge).mean() for found in sums)
            ratios.append(math.log(p / q))
    assert 0.6 < max(map(abs, ratios)) < 0.8  # ε = 0.7, and it is used
    assert sums[0].var() == pytest.approx(2 * (2 / 0.7) ** 2, rel=0.06)


def test_rewards_between_grid_points_are_rounded_without_bias() -> None:
    noise = CentralModel(epsilon=1e6).noise(1)
    rewards = np.full(50_000, 1 / 3)
    places = np.zeros(50_000, dtype=np.int64)
    total = noise.totals(rewards, places=places, played=1, randomness=SeededRandomness(3))
    assert total[0] == pytest.approx(50_000 / 3, abs=1e-2)


# -- local reports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["laplace", "binary-rr"])
def test_simulated_sums_have_the_law_of_real_reports(mechanism: str) -> None:
    noise, draws = LocalModel(local_epsilon=1.5, mechanism=mechanism).noise(3), 8_000
    rewards = np.tile([1.0, 1.0, -1.0], draws)
    places = np.repeat(np.arange(draws), 3)
    sent = noise.randomized(rewards, randomness=SeededRandomness(1))
    values = sent.fields[0].values.numpy().ravel().astype(float)
    if mechanism == "laplace":
        grid = laplace_grid(local_epsilon=1.5, dim=1, bits=FINE_BITS)
        values = (values - noise.randomizer.limit) / grid.radius_in_steps
    else:
        values = (2 * values - 1) / math.tanh(0.75)
    real = np.bincount(places, weights=values)
    ones = np.full(draws, 2)
    simulated = noise.simulated(ones, np.full(draws, 3), np.random.default_rng(0))
    for found in (real, simulated):
        assert found.mean() == pytest.approx(1, abs=0.2)
    assert real.var() == pytest.approx(simulated.var(), rel=0.08)
    at = np.quantile(real, [0.1, 0.3, 0.7, 0.9]) + 0.01
    assert np.abs((real[:, None] <= at).mean(axis=0) - (simulated[:, None] <= at).mean(axis=0)).max() < 0.03


@pytest.mark.parametrize("mechanism", ["laplace", "binary-rr"])
def test_reports_of_each_action_are_added_up(mechanism: str) -> None:
    noise = LocalModel(local_epsilon=400.0, mechanism=mechanism).noise(5)
    rewards = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    places = np.array([1, 0, 1, 0, 0])
    sent = noise.randomized(rewards, randomness=SeededRandomness(0))
    totals = noise.totals(sent, places=places, played=2, randomness=None)
    assert totals == pytest.approx([-1.0, 2.0], abs=0.1)


# -- widths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [1, 40])
def test_laplace_width_is_nearly_the_least_chernoff_bound_of_each_action(actions: int) -> None:
    """At one λ for all actions; of one action it is the least."""
    rng = np.random.default_rng(4)
    for trial in range(20):
        scaled = rng.normal(size=(actions, 3)) * 10.0 ** rng.integers(-8, 2)
        copies = rng.integers(1, 10 ** (trial % 6 + 1), size=3)
        failure, lengths = 10 ** rng.uniform(-12, -1), np.zeros(actions)

        def bound(u, row, copies=copies, failure=failure):
            rate = math.exp(u) / np.abs(row).max()
            return (math.log(4 / failure) - (np.log1p(-((rate * row) ** 2)) * copies).sum()) / rate

        options = {"method": "bounded", "bounds": (-20, -1e-9), "options": {"xatol": 1e-10}}
        best = max(minimize_scalar(bound, args=(row,), **options).fun for row in scaled)
        found = laplace_width(lengths=lengths, scaled=scaled, copies=copies, failure=failure)
        assert best * (1 - 1e-9) <= found <= best * (1 + 1e-5 if actions == 1 else 1.1)


def test_laplace_width_holds_and_is_not_idle() -> None:
    rng = np.random.default_rng(5)
    sums = 0.3 * rng.laplace(size=(200_000, 4)).sum(axis=1) - rng.laplace(size=(200_000, 2)).sum(axis=1)
    given = {"lengths": np.zeros(1), "scaled": np.array([[0.3, -1.0]]), "copies": np.array([4, 2])}
    for failure in (0.3, 0.01):
        beyond = (np.abs(sums) > laplace_width(**given, failure=2 * failure)).mean()
        assert failure / 100 < beyond <= failure
