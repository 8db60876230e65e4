"""What every sum must be: unbiased, as noisy as it says, the same in messages and reports, in its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accounted import accounted
from thinning import first_fast
from torch import Tensor

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.core import Reports
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CountedUnary,
    CubeSum,
    Histogram,
    HistogramSum,
    LaplaceHistogram,
    LaplaceScalarSum,
    LaplaceVectorSum,
    PoissonBinomialSum,
    ScalarSum,
    SplitSum,
    UnaryL1Sum,
    VectorSum,
)
from shuffle_plugins.protocols.laplace import LaplaceSum
from shuffle_plugins.protocols.sums import Tally
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.shuffler import InMemoryShuffler

CLIENTS = 40
HELD: dict[str, Any] = {"cohort": CLIENTS}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ball(dim: int) -> Tensor:
    rows = drawn(CLIENTS, dim, seed=1)
    return 2 * rows / rows.norm(dim=1, keepdim=True)


def hot(categories: int) -> tuple[Tensor, Tensor]:
    held = torch.arange(CLIENTS) ** 2 % categories
    return held, torch.nn.functional.one_hot(held, categories).double()


IN_CUBE = drawn(CLIENTS, 5, seed=2).clamp(-2, 2)
BITS = (IN_CUBE > 0).double()
NUMBERS = drawn(CLIENTS, 1, seed=3).abs().clamp(0, 3)
IN_L1 = drawn(CLIENTS, 4, seed=4) / 4
CATEGORIES, ONE_HOT = hot(5)

SUMS: list[tuple[Any, Tensor, Tensor]] = [  # the protocol, its data, and what they add up to
    (VectorSum(dim=3, coins=7, levels=4, radius=2.0, **HELD), ball(3), ball(3)),
    (ScalarSum(coins=40, levels=3, upper=3.0, **HELD), NUMBERS, NUMBERS),
    (HistogramSum(categories=5, levels=4, coins=20, **HELD), CATEGORIES, ONE_HOT),
    (SplitSum(levels=8, noise_epsilon=0.9, shares=6, upper=3.0, **HELD), NUMBERS, NUMBERS),
    (BinarySum(dim=5, budget=6.0, samples=2, **HELD), BITS, BITS),
    (CubeSum(dim=5, budget=12.0, samples=3, levels=3, radius=2.0, **HELD), IN_CUBE, IN_CUBE),
    (BallSum(dim=6, budget=20.0, samples=5, levels=2, radius=2.0, **HELD), ball(6), ball(6)),
    (BallSum(dim=6, budget=20.0, samples=8, radius=2.0, frame="rotation", **HELD), ball(6), ball(6)),
    (PoissonBinomialSum(dim=5, bits=3, message_epsilon=0.3, radius=2.0, **HELD), ball(5), ball(5)),
    (CountedUnary(length=5, bit_epsilon=1.5, held=5, **HELD), BITS, BITS),
    (CountedUnary(length=5, bit_epsilon=1.5, encoding="optimal", **HELD), CATEGORIES, ONE_HOT),
    (UnaryL1Sum(dim=4, bit_epsilon=2.5, radius=3.0, **HELD), IN_L1, IN_L1),
    (LaplaceHistogram(categories=5, noise_epsilon=0.8, honest_fraction=0.7, **HELD), CATEGORIES, ONE_HOT),
    (LaplaceScalarSum(levels=8, noise_epsilon=0.9, upper=3.0, **HELD), NUMBERS, NUMBERS),
    (LaplaceVectorSum(dim=4, levels=6, noise_epsilon=0.9, radius=3.0, **HELD), IN_L1, IN_L1),
]


def each_of(chosen: list[tuple[Any, Tensor, Tensor]]) -> pytest.MarkDecorator:
    names = [f"{each.name}-{i}" for i, (each, _, _) in enumerate(chosen)]
    return pytest.mark.parametrize(("protocol", "data", "truth"), chosen, ids=names)


EACH = each_of(SUMS)
IN_MESSAGES = [kind for kind in SUMS if not isinstance(kind[0], LaplaceSum)]
LABELLED = pytest.mark.parametrize(
    ("protocol", "data"), [(each, data) for each, data, _ in IN_MESSAGES if not isinstance(each, SplitSum)]
)


def estimated(protocol: Any, total: Any, **options: int) -> Tensor:
    found = protocol.estimate(total, **options)
    return found.counts if isinstance(found, Histogram) else found


@EACH
@pytest.mark.parametrize("way", ["at once", "report by report"])
def test_estimates_are_unbiased_and_vary_as_they_say(
    protocol: Any, data: Tensor, truth: Tensor, way: str
) -> None:
    source, repeats = SeededRandomness(5), 300
    errors = []
    for _ in range(repeats):
        found = (
            protocol.randomize_sum(data, randomness=source)
            if way == "at once"
            else protocol.sum(protocol.randomize(data, randomness=source))
        )
        errors.append(found.double() - truth.sum(dim=0))
    found = torch.stack(errors)
    spread = found.std(dim=0) / math.sqrt(repeats)
    assert float((found.mean(dim=0).abs() / spread).max()) < 5.5
    each = found.square().sum(dim=1)
    noise = float(each.std()) / math.sqrt(repeats)
    assert float(each.mean()) < protocol.worst_variance + 5 * noise
    assert float(each.mean()) > 0.5 * protocol.worst_variance - 5 * noise


@each_of(IN_MESSAGES)
def test_messages_and_reports_are_the_same_sum(protocol: Any, data: Tensor, truth: Tensor) -> None:
    reports = protocol.randomize(data, randomness=SeededRandomness(8))
    batches = protocol.messages(reports)
    assert {len(batch) for batch in batches} == {protocol.messages_per_client}
    assert {batch.bits_per_report for batch in batches} == {protocol.message_layout.bits}
    shuffled = Reports.from_bytes(InMemoryShuffler().shuffle(batches).to_bytes())
    parts = protocol.total(reports.narrow(0, 11)) + protocol.total(reports.narrow(11, CLIENTS))
    expected = estimated(protocol, protocol.total(reports), reports=CLIENTS)
    assert torch.equal(estimated(protocol, parts, reports=CLIENTS), expected)
    if isinstance(protocol, SplitSum):
        assert torch.equal(protocol.estimate(protocol.total(shuffled)), expected)
        return
    counted = protocol.tally(shuffled)
    assert (counted.foreign, protocol.senders(counted)) == (0, CLIENTS)
    torch.testing.assert_close(estimated(protocol, counted), expected, rtol=1e-12, atol=1e-9)


@LABELLED
def test_who_dropped_out_is_not_counted_and_totals_say_whose_they_are(protocol: Any, data: Tensor) -> None:
    reports = protocol.randomize(data, randomness=SeededRandomness(0)).narrow(0, 10)
    sent = protocol.messages(reports)
    here = sum([protocol.tally(Reports.concat(sent[:4])), protocol.tally(Reports.concat(sent[4:]))])
    total = protocol.total(reports)
    torch.testing.assert_close(estimated(protocol, here), estimated(protocol, total, reports=10))
    with pytest.raises(ValueError, match="pass reports="):
        protocol.estimate(total)
    for wrong in (-1, 6.0, True):
        with pytest.raises(ValueError, match="reports must be"):
            protocol.estimate(total, reports=wrong)
    with pytest.raises(ValueError, match=rf"a total is \({protocol.labels},\)"):
        protocol.estimate(total[1:], reports=10)
    with pytest.raises(ValueError, match="whole number of clients"):
        protocol.senders(protocol.tally(Reports.concat([*sent[:5], sent[5].narrow(0, 1)])))
    with pytest.raises(ValueError, match="labels do not add up"):
        sum([here, Tally(ones=here.ones[1:], bits=here.ones[1:])])


@EACH
def test_other_data_reports_and_numbers_of_clients_are_refused(
    protocol: Any, data: Tensor, truth: Tensor
) -> None:
    with pytest.raises(ValueError, match=f"{CLIENTS} clients"):
        protocol.randomize_sum(data[1:])
    with pytest.raises((ValueError, TypeError)):
        protocol.randomize(torch.zeros(CLIENTS, 9))
    reports = protocol.randomize(data)
    foreign = replace(reports, mechanism="another")
    for call in (protocol.total, protocol.messages):
        with pytest.raises(ValueError, match=f"not of '{protocol.name}'"):
            call(foreign)


@pytest.mark.parametrize(
    "protocol",
    [
        HistogramSum(categories=5, levels=4, coins=6, **HELD),
        LaplaceHistogram(categories=5, noise_epsilon=1.0, **HELD),
        LaplaceHistogram(categories=5, noise_epsilon=1.0, honest_fraction=0.25, **HELD),
    ],
)
def test_intervals_hold_as_often_as_they_say(protocol: Any) -> None:
    data, truth, trials = torch.tensor([0] * 25 + [3] * 15), torch.tensor([25, 0, 0, 15, 0]) / 40, 600
    covered, within, reach = 0, 0, protocol.largest_error(confidence=0.9)
    for seed in range(trials):
        histogram = protocol.randomize_histogram(data, randomness=SeededRandomness(seed))
        intervals = protocol.intervals(histogram, confidence=0.9)
        covered += int(((intervals.lower <= truth) & (truth <= intervals.upper)).sum())
        within += float((histogram.frequencies - truth).abs().max()) <= reach
    assert covered / (5 * trials) > 0.88
    assert within / trials > 0.86


CALIBRATED: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (VectorSum.calibrated, {"dim": 20}),
    (ScalarSum.calibrated, {}),
    (HistogramSum.calibrated, {"categories": 20}),
    (SplitSum.calibrated, {}),
    (LaplaceHistogram.calibrated, {"categories": 20}),
    (LaplaceVectorSum.calibrated, {"dim": 20}),
    (CubeSum.calibrated, {"dim": 20}),
    (PoissonBinomialSum.calibrated, {"dim": 10, "bits": 7}),
    (CountedUnary.calibrated, {"length": 30}),
]


@first_fast(("calibrated", "own"), CALIBRATED, fast=4)
def test_sampled_steps_with_dishonest_clients_spend_their_target(
    calibrated: Callable[..., Any], own: dict[str, Any]
) -> None:
    asked = {"cohort": 500, "epsilon": 1.0, "delta": 1e-6, "num_steps": 10, "population": 5_000}
    protocol = calibrated(**asked, **own, honest_fraction=0.8)
    assert (
        0.97
        < accounted(protocol.round(population=5_000), num_steps=10).epsilon(1e-6, lower=False).upper
        <= 1.0
    )
    if not isinstance(protocol, CountedUnary):  # whose calibration takes ten seconds where all are honest
        everybody = calibrated(**asked, **own)
        assert protocol.worst_variance > 1.1 * everybody.worst_variance
    if not isinstance(protocol, SplitSum):  # fewer reports than planned cost more
        fewer, planned = ShuffleAccountant(), ShuffleAccountant()
        fewer.step(protocol.round(cohort=400))
        planned.step(protocol.round())
        assert fewer.epsilon(1e-6).upper > 1.02 * planned.epsilon(1e-6).upper
