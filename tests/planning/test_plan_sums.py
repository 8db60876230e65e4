"""Plans of sums: who draws the clients of a round, against which adversary, and what it saves."""

import math
from functools import partial

import pytest
import torch
from histories import accountant_of
from scipy import stats

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.planning import plan_sums
from shuffle_plugins.planning.errors import gaussian_mse
from shuffle_plugins.planning.plans import DrawnBy, SumPlan
from shuffle_plugins.planning.sums import most_rounds
from shuffle_plugins.protocols import VectorSum, WindowedSum, prefix_noise
from shuffle_plugins.randomness import SeededRandomness

N, K, T, DIM, DELTA, EPSILON = 2_000, 200, 40, 30, 1e-6, 1.5

planned = partial(
    plan_sums, target_epsilon=EPSILON, delta=DELTA, population=N, dim=DIM, num_steps=T, cohorts=(K, N)
)


@pytest.fixture(scope="module", params=[pytest.param("model-observer", marks=pytest.mark.slow), "server"])
def found(request: pytest.FixtureRequest) -> SumPlan:
    return planned(adversary=request.param)


def test_every_way_is_certified_within_the_target(found: SumPlan) -> None:
    server, clients, *windows, nobody = found.rows
    ways = [DrawnBy.SERVER, DrawnBy.CLIENTS, DrawnBy.IN_TURN, DrawnBy.NOBODY]
    if found.adversary is not Adversary.SERVER:  # before whom sampling alone is as good
        del ways[2]
    assert [row.drawn_by for row in found.rows] == ways
    assert [row.answering for row in found.rows] == [K, N, *(K for _ in windows), N]
    for row in found.rows:
        least = 0.7 if row is server else 0.95  # the bound of k of n is attained by no single instance
        assert least * EPSILON < row.epsilon.lower <= row.epsilon.upper <= EPSILON
        assert row.epsilon.adversary == found.adversary
        assert row.average_mse == pytest.approx((row.noise_mse + row.sampling_mse) / T)
    assert clients.charged_steps == nobody.charged_steps == T
    assert (server.charged_steps < T) == (found.adversary is Adversary.SERVER)


def test_a_row_is_the_protocols_own_answer(found: SumPlan) -> None:
    """Of the secret row and the drawn one, from a protocol of the noise that the row says; its real error."""
    server, clients, *_ = found.rows
    share = K / N
    secret = VectorSum.with_noise(dim=DIM, cohort=N, noise_multiplier=clients.noise_multiplier)
    accountant = accountant_of((secret.round(participation=share, adversary=found.adversary), T))
    assert clients.epsilon == accountant.epsilon(DELTA)
    total = sum(
        secret.randomize_sum(torch.zeros(N, DIM), randomness=SeededRandomness(seed)).square().sum().item()
        for seed in range(30)
    )
    assert total / 30 / K**2 == pytest.approx(clients.noise_mse, rel=0.2)  # 900 squares: 6 deviations
    assert clients.bits_per_client == T * secret.bits_per_report
    assert server.bits_per_client == pytest.approx(T * server.bits_per_report * share)


def test_windows_are_offered_where_they_win_and_say_by_how_much() -> None:
    served = planned(adversary="server", cohorts=(K,))
    server, _, windows = served.rows
    assert windows.charged_steps == T // (N // K)
    assert len(windows.coefficients) == N // K
    built = WindowedSum.with_noise(
        dim=DIM, cohort=K, noise_multiplier=windows.noise_multiplier, coefficients=windows.coefficients
    )
    certified = accountant_of((built.round(adversary=Adversary.SERVER), windows.charged_steps)).epsilon(DELTA)
    assert windows.epsilon == certified
    left = math.hypot(*windows.coefficients) * prefix_noise(windows.coefficients, rounds=T)
    assert windows.model_noise == pytest.approx(windows.noise_multiplier * left)
    assert windows.model_noise < 0.3 * server.noise_multiplier
    assert windows.noise_mse == pytest.approx(DIM * windows.model_noise**2 / K**2, rel=0.05)
    assert any("windows of 10 rounds" in said and "and not" in said for said in served.remarks())
    watched = planned(mechanism="windowed-sum", cohorts=(K,))
    assert [row.noise_multiplier for row in watched.rows] == [windows.noise_multiplier]
    assert planned(cohorts=(K,), num_steps=1).rows[-1].drawn_by is DrawnBy.CLIENTS


@pytest.mark.slow
def test_in_secret_sampling_counts_against_the_server_too() -> None:
    watched, served = planned(), planned(adversary="server")
    observed, against = ({row.drawn_by: row for row in each.rows} for each in (watched, served))
    for drawn_by in (DrawnBy.CLIENTS, DrawnBy.NOBODY):
        assert observed[drawn_by].noise_multiplier == against[drawn_by].noise_multiplier
    assert against[DrawnBy.SERVER].noise_multiplier > 3 * observed[DrawnBy.SERVER].noise_multiplier
    assert observed[DrawnBy.CLIENTS].noise_multiplier < observed[DrawnBy.SERVER].noise_multiplier
    assert served.best.drawn_by in (DrawnBy.CLIENTS, DrawnBy.NOBODY)
    assert any("not " in said and "times the bits" in said for said in served.remarks())
    assert any("drawn most often" in said for said in served.remarks())
    assert not any("drawn most often" in said for said in watched.remarks())


def test_everybody_in_every_round_is_near_a_trusted_curator(found: SumPlan) -> None:
    everybody = found.rows[-1]
    ideal = gaussian_mse(target_epsilon=EPSILON, delta=DELTA, sensitivity=2 / N, dim=DIM)
    assert ideal < everybody.average_mse < 1.1 * ideal


@pytest.mark.slow
def test_the_noise_of_mnist_is_that_of_the_proofs_table() -> None:
    """docs/proofs/sums.md, "What it buys": ε = 2.93 by noise of 4.15 drawn by the server, 3.38 in secret."""
    mnist = partial(
        plan_sums,
        target_epsilon=2.93,
        delta=1e-5,
        population=60_000,
        dim=6_130,
        num_steps=300,
        cohorts=[4096],
    )
    server, clients = mnist(adversary="model-observer").rows
    assert server.noise_multiplier == pytest.approx(4.15, rel=0.02)
    assert clients.noise_multiplier == pytest.approx(3.38, rel=0.02)
    server, again, _ = mnist(adversary="server").rows
    assert again.noise_multiplier == clients.noise_multiplier
    assert (server.charged_steps, again.charged_steps) == (48, 300)
    assert server.noise_multiplier > 5 * clients.noise_multiplier
    sum_of_2_32 = VectorSum.with_noise(dim=6_130, cohort=60_000, noise_multiplier=4.15)
    accountant = accountant_of(
        (sum_of_2_32.round(participation=4096 / 60_000, adversary=Adversary.SERVER), 300)
    )
    assert accountant.epsilon(1e-5).upper == pytest.approx(2.32, abs=0.02)


@pytest.mark.parametrize(
    ("num_steps", "share", "clients"), [(1, 0.5, 2), (300, 4096 / 60_000, 60_000), (50, 0.9, 9)]
)
def test_the_busiest_client_by_an_independent_tail(num_steps: int, share: float, clients: int) -> None:
    most = most_rounds(num_steps, share=share, clients=clients)
    assert clients * stats.binom.sf(most, num_steps, share) <= 1e-3
    assert most == 0 or clients * stats.binom.sf(most - 1, num_steps, share) > 1e-3


@pytest.mark.slow
def test_sums_of_few_bits_are_planned_too() -> None:
    few = planned(mechanism="poisson-binomial", num_steps=(2, 1), cohorts=[20], population=40, dim=2)
    assert [row.num_steps for row in few.rows] == [1, 1, 2, 2]
    assert all(0.98 * EPSILON < row.epsilon.upper <= EPSILON for row in few.rows)
