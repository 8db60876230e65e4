"""Windows of sums: solved sums and their noise, what is never shown, calibration, coefficients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from accounted import accounted
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

from shuffle_plugins.accounting import FederatedRound
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.spec import SumSpec, spec_from_json
from shuffle_plugins.planning import expected_noise
from shuffle_plugins.protocols import (
    VectorSum,
    WindowedSum,
    Windows,
    WindowSolver,
    dap_task,
    prefix_noise,
    window_coefficients,
)
from shuffle_plugins.protocols.draws import drawn_range
from shuffle_plugins.randomness import SeededRandomness

DELTA = 1e-5


def small(**changes: object) -> WindowedSum:
    fields: dict[str, object] = {"dim": 3, "cohort": 6, "levels": 5, "coins": 40, "coefficients": (3, 2, 1)}
    return WindowedSum(**(fields | changes))  # type: ignore[arg-type]


def noise_matrix(
    coefficients: tuple[float, ...],
    rounds: int,
    *,
    momentum: float = 0.0,
    rates: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """What a unit of noise in each window (column) does to the model after each round (row)."""
    windows = np.tril(toeplitz(np.r_[coefficients, np.zeros(rounds)][:rounds]))
    smooth = np.tril(toeplitz(momentum ** np.arange(rounds)))
    steps = np.ones(rounds) if rates is None else rates
    workload = np.tril(np.ones((rounds, rounds))) @ np.diag(steps) @ smooth
    solved: NDArray[np.float64] = solve_triangular(windows.T, workload.T).T
    return solved


def test_solved_sums_are_unbiased_and_their_noise_is_that_of_explicit_matrices() -> None:
    rounds, series = 6, 1_500
    protocol = small(coins=200)
    data = torch.randn(rounds, 6, 3, generator=torch.Generator().manual_seed(1)).double()
    data /= data.norm(dim=2, keepdim=True)
    source, windows = SeededRandomness(3), Windows(protocol)
    opened = []
    for rows in data:
        reports = protocol.randomize(rows.repeat(series, 1), randomness=source)
        sent = torch.cat(
            [part.values.long().reshape(series, 6, 3).sum(dim=1) for part in reports.fields], dim=1
        )
        opened.append(windows.open(sent, reports=6))
    errors = torch.zeros(rounds, series, 3, dtype=torch.float64)
    for i in range(series):
        solver = WindowSolver(protocol)
        for t in range(rounds):
            errors[t, i] = solver.solve(opened[t][i], reports=6) - data[t].sum(dim=0)
    spread = errors.std(dim=1) / math.sqrt(series)
    assert float((errors.mean(dim=1).abs() / spread).max()) < 5.5
    window_variance = 6 * 200 / 4 * protocol.lattice.step**2
    expected = window_variance * np.square(noise_matrix((3, 2, 1), rounds)).sum(axis=1)
    found = errors.cumsum(dim=0).square().mean(dim=(1, 2)).numpy()
    rounding = 6 / 4 * protocol.lattice.step**2 * np.arange(1, rounds + 1)  # at most, of all encoded vectors
    assert np.all(found > 0.94 * expected)
    assert np.all(found < 1.06 * (expected + rounding))
    first = errors[0].square().sum(dim=1).mean()
    assert 0.9 * protocol.worst_variance < first < 1.05 * protocol.worst_variance


def test_noise_over_rounds_is_that_of_independent_noise_that_leaves_as_much() -> None:
    protocol, plain = small(coins=4_000), VectorSum(dim=3, cohort=6, levels=5, coins=4_000)
    window = 6 * 4_000 / 4 * protocol.lattice.step**2
    for rounds in (1, 5, 40):
        left = np.square(noise_matrix((3, 2, 1), rounds)).sum() / np.square(noise_matrix((1,), rounds)).sum()
        rounding = plain.worst_variance - 3 * plain.noise_variance
        assert protocol.variance_over(rounds) == pytest.approx(3 * window * left + rounding)
        noise = expected_noise(protocol, cohort=6, num_steps=rounds).noise
        assert noise == pytest.approx(math.sqrt(protocol.variance_over(rounds)) / 6)
    assert protocol.variance_over(1) == pytest.approx(protocol.worst_variance)
    assert plain.variance_over(40) == plain.worst_variance


def test_totals_of_parts_add_up_and_a_sum_alone_is_a_series_of_one_round() -> None:
    protocol = small()
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    reports = protocol.randomize(rows, randomness=SeededRandomness(1))
    total = protocol.total(reports)
    assert torch.equal(total, protocol.total(reports.narrow(0, 2)) + protocol.total(reports.narrow(2, 6)))
    alone = WindowSolver(protocol).solve(Windows(protocol).open(total, reports=6), reports=6)
    assert torch.equal(protocol.estimate(total, reports=6), alone)
    drawn = torch.stack([protocol.randomize_sum(rows, randomness=SeededRandomness(i)) for i in range(400)])
    truth = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1)).sum(dim=0)
    assert float((drawn.mean(dim=0) - truth).abs().max()) < 6 * math.sqrt(protocol.worst_variance / 3 / 400)
    read = type(reports).from_bytes(reports.to_bytes())
    assert torch.equal(protocol.total(read), total)


def test_a_simulated_round_has_the_law_of_reports() -> None:
    protocol = small()
    share = protocol.share(torch.zeros(6, 3), randomness=SeededRandomness(1))
    noise = protocol.common_noise(randomness=SeededRandomness(2))
    assert share.tolist() == [30, 30, 30, 0, 0, 0]
    assert noise[:3].tolist() == [0, 0, 0]
    low, _ = drawn_range(40)
    drawn = torch.stack(
        [protocol.common_noise(randomness=SeededRandomness(i))[3:] for i in range(500)]
    ).double()
    assert float((drawn.mean() - 6 * (20 - low)).abs()) < 6 * math.sqrt(60 / 1500)
    assert 54 < float(drawn.var()) < 66


def test_what_clients_cannot_send_is_refused_and_a_shuffler_gets_no_messages() -> None:
    protocol = small()
    reports = protocol.randomize(torch.zeros(6, 3))
    data, coins = (part.values.clone() for part in reports.fields)
    data[0, 0] = protocol.data_highest + 1
    with pytest.raises(ValueError, match="outside"):
        protocol.total(protocol.layout.reports(data, coins))
    for call in (protocol.messages, protocol.tally):
        with pytest.raises(ValueError, match="without its coins"):
            call(reports)
    with pytest.raises(ValueError, match="no VDAF"):
        dap_task(protocol)
    with pytest.raises(ValueError, match="whole numbers"):
        Windows(protocol).open(torch.zeros(6), reports=6)
    with pytest.raises(ValueError, match=r"a window is \(3\)|a window is \(3,\)"):
        WindowSolver(protocol).solve(torch.zeros(6), reports=6)
    with pytest.raises(ValueError, match="exceed 2"):
        small(levels=1 << 24, cohort=1 << 20, coins=1, coefficients=(1 << 16, 1 << 16))


def test_a_round_of_fewer_clients_than_windows_are_promised_is_refused() -> None:
    protocol = small(cohort=40)
    assert protocol.round(cohort=50, population=900) == protocol.round()
    assert protocol.round().sampling_rate == 1.0
    with pytest.raises(ValueError, match="opens nothing"):
        protocol.round(cohort=39)
    one = FederatedRound.drawn(protocol, candidates=900, invited=60, reports=50)
    assert (one.observer, one.server) == (protocol.round(), protocol.round())
    assert FederatedRound.from_state(one.state()) == one


def test_a_short_round_opens_no_window_and_enters_no_series() -> None:
    protocol = small()
    total = protocol.total(protocol.randomize(torch.ones(6, 3), randomness=SeededRandomness(1)))
    windows = Windows(protocol)
    with pytest.raises(ValueError, match="promised the coins of 6 clients, got 5"):
        windows.open(total, reports=5)
    assert torch.equal(windows.open(total, reports=6), Windows(protocol).open(total, reports=6))
    with pytest.raises(ValueError, match="got 5 reports"):
        protocol.estimate(total, reports=5)


def test_it_is_agreed_on_and_built_by_name() -> None:
    protocol = small()
    assert spec_from_json(SumSpec(protocol=protocol).to_json()) == SumSpec(protocol=protocol)
    found = get("windowed-sum", dim=3, cohort=50, noise_multiplier=9.0, coefficients=(4, 2, 1))
    alone = get("vector-sum", dim=3, cohort=50, noise_multiplier=9.0)
    ratio = found.round().noise_multiplier / alone.round().noise_multiplier
    assert 0.98 < ratio < 1.02
    for none in ((), (0, 1), (1.5,), "12"):
        with pytest.raises(ValueError, match="coefficients must be whole numbers"):
            WindowedSum.calibrated(dim=3, cohort=50, epsilon=1.0, delta=DELTA, coefficients=none)
    with pytest.raises(TypeError, match="coefficients"):
        VectorSum.calibrated(dim=3, cohort=50, epsilon=1.0, delta=DELTA, coefficients=(2, 1))


@pytest.mark.parametrize("weights", [(1,), (6, 4, 3, 3), (2, 0, 1)])
def test_calibrated_windows_spend_their_target_and_round_finely(weights: tuple[int, ...]) -> None:
    protocol = WindowedSum.calibrated(
        dim=200, cohort=500, epsilon=1.0, delta=DELTA, num_steps=4, coefficients=weights, honest_fraction=0.8
    )
    spent = accounted(protocol.round(), num_steps=4).epsilon(DELTA)
    assert 0.97 < spent.upper <= 1.0
    assert spent.lower > 0.95
    # Rounding of data, which windows repeat, beside the noise of long prefix sums.
    repeated = 500 * protocol.lattice.rounding_variance * sum(weights) ** 2
    assert repeated < 0.025 * 400 * protocol.coins / 4
    alone = VectorSum.calibrated(
        dim=200, cohort=500, epsilon=1.0, delta=DELTA, num_steps=4, honest_fraction=0.8
    )
    windows, single = (math.sqrt(each.noise_variance) for each in (protocol, alone))
    assert windows * weights[0] == pytest.approx(single * math.hypot(*weights), rel=0.02)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"momentum": 0.9},
        {"learning_rates": [1.0, 0.5] * 25},
        {"momentum": 0.5, "learning_rates": [0.1] * 50},
    ],
)
def test_noise_is_that_of_explicit_matrices_and_no_other_coefficients_have_less(
    how: dict[str, object],
) -> None:
    rounds, band = 50, 6
    rates = None if "learning_rates" not in how else np.asarray(how["learning_rates"])

    def exact(weights: tuple[float, ...]) -> float:
        matrix = noise_matrix(weights, rounds, momentum=how.get("momentum", 0.0), rates=rates)  # type: ignore[arg-type]
        return float(np.square(matrix).sum())

    found = window_coefficients(rounds=rounds, band=band, **how)  # type: ignore[arg-type]
    assert len(found) <= band
    noise = prefix_noise(found, rounds=rounds, **how)  # type: ignore[arg-type]
    assert noise == pytest.approx(math.sqrt(exact(found) / exact((1.0,))), rel=1e-9)
    best = math.hypot(*found) * noise
    assert best < 0.75
    draw = np.random.default_rng(1)
    for _ in range(200):
        near = np.abs(np.asarray(found) * (1 + 0.15 * draw.standard_normal(len(found))))
        assert math.hypot(*near) * math.sqrt(exact(tuple(near)) / exact((1.0,))) > 0.985 * best


@pytest.mark.parametrize("rounds", range(1, 9))
@pytest.mark.parametrize("scheduled", [False, True])
def test_noise_of_series_shorter_than_a_window_is_that_of_explicit_matrices(
    rounds: int, scheduled: bool
) -> None:
    weights = (6, 4, 3, 3, 2, 2)
    rates = np.linspace(1.0, 0.2, rounds) if scheduled else None
    exact = [np.square(noise_matrix(each, rounds, rates=rates)).sum() for each in (weights, (1.0,))]
    given = None if rates is None else rates.tolist()
    found = prefix_noise(weights, rounds=rounds, learning_rates=given)
    assert found == pytest.approx(math.sqrt(exact[0] / exact[1]), rel=1e-9)
    protocol = small(coefficients=weights)
    left = prefix_noise(weights, rounds=rounds) * 6
    noise = 3 * protocol.noise_variance * (left**2 - 1)
    assert protocol.variance_over(rounds) == pytest.approx(protocol.worst_variance + noise)


def test_long_schedules_are_followed_in_evenly_spaced_rounds() -> None:
    rounds, weights = 700, (6, 4, 3, 3, 2, 2)
    rates = np.cos(np.linspace(0, 1.5, rounds))
    exact = [
        np.square(noise_matrix(each, rounds, momentum=0.5, rates=rates)).sum() for each in (weights, (1.0,))
    ]
    found = prefix_noise(weights, rounds=rounds, momentum=0.5, learning_rates=rates.tolist())
    assert found == pytest.approx(math.sqrt(exact[0] / exact[1]), rel=1e-3)


@pytest.mark.parametrize(
    ("rounds", "band", "most"), [(200, 14, 0.351), (1_000, 40, 0.21), (300, 40, 0.26), (10_000, 100, 0.119)]
)
def test_long_series_have_a_third_to_an_eighth_of_the_noise(rounds: int, band: int, most: float) -> None:
    found = window_coefficients(rounds=rounds, band=band)
    assert math.hypot(*found) * prefix_noise(found, rounds=rounds) < most
    assert max(found) < 16  # few bits


def test_windows_of_one_round_are_plain_sums() -> None:
    assert window_coefficients(rounds=1, band=9) == (1,)
    assert window_coefficients(rounds=9, band=1) == (1,)
    assert prefix_noise((1,), rounds=9) == 1.0
    assert prefix_noise((4,), rounds=9) == pytest.approx(0.25)
    one = small(coefficients=(1,), coins=40_000).round()
    plain = VectorSum(dim=3, cohort=6, levels=5, coins=40_000).round()
    ends = [accounted(each, num_steps=3).epsilon(1e-3) for each in (one, plain)]
    assert ends[0].upper == pytest.approx(ends[1].upper)
    assert ends[0].lower == pytest.approx(ends[1].lower, rel=1e-3)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"momentum": 1.0}, "momentum"),
        ({"band": 0}, "band"),
        ({"rounds": 0}, "rounds"),
        ({"learning_rates": [1.0]}, "for each of 5 rounds"),
        ({"rounds": 40, "band": 8, "rounding": 1e-14}, "larger rounding"),
        ({"learning_rates": [0.0] * 5}, "all zero"),
        ({"learning_rates": [1.0, 1.0, -1.0, 1.0, 1.0]}, "a learning rate"),
    ],
)
def test_schedules_that_are_none_are_refused(how: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        window_coefficients(**({"rounds": 5, "band": 2} | how))  # type: ignore[arg-type]
