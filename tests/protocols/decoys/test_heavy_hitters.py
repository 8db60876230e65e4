"""Heavy hitters: what is asked, what is found and missed, and what it costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accounted import accounted

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.protocols import (
    DecoyHistogram,
    FoundValues,
    HeavyHitters,
    HistogramSum,
    LaplaceHistogram,
    PrefixQuestion,
)
from shuffle_plugins.randomness import SeededRandomness


def small(*, cohort: int = 2_000, decoys: float = 30.0) -> HeavyHitters:
    counts = DecoyHistogram(categories=256, cohort=cohort, decoys=decoys)
    return HeavyHitters(bits=20, cohort=cohort, counts=counts, width=16)


SMALL = small()


def values(search: HeavyHitters, *held: tuple[int, int]) -> torch.Tensor:
    """So many clients hold each value, the others one of their own."""
    generator = torch.Generator().manual_seed(1)
    rest = search.cohort - sum(many for _, many in held)
    drawn = torch.randint(0, 1 << search.bits, (rest,), generator=generator)
    return torch.cat([drawn, *(torch.full((many,), value) for value, many in held)])


def test_every_value_is_asked_for_by_its_prefixes() -> None:
    loud = small(decoys=1e-20)
    x = values(loud, (777, 300), (1_000_001, 200), (0, 150), ((1 << 20) - 1, 100))
    question = loud.first()
    asked = []
    while isinstance(question, PrefixQuestion):
        asked.append((question.kept_bits, question.asked_bits))
        total = loud.asked(question).total(loud.randomize(x, question))
        candidates = question.candidates()
        exact = torch.bincount(
            torch.searchsorted(candidates, x >> (20 - question.asked_bits)).clamp(max=len(candidates) - 1),
            weights=torch.isin(x >> (20 - question.asked_bits), candidates).double(),
            minlength=len(candidates),
        )
        assert torch.equal(total[: len(candidates)].double(), exact)
        question = loud.following(total, question, reports=2_000)
    assert asked == [(0, 8), (8, 12), (12, 16), (16, 20)]
    assert len(asked) == loud.rounds
    assert question.values[:4].tolist() == [777, 1_000_001, 0, (1 << 20) - 1]
    assert question.counts[:4].round().tolist() == [300, 200, 150, 100]


@pytest.mark.parametrize(
    ("kind", "groups"),
    [(DecoyHistogram, False), (DecoyHistogram, True), (LaplaceHistogram, False), (HistogramSum, False)],
)
def test_frequent_values_are_found_and_the_cost_is_the_target(kind: Any, groups: bool) -> None:
    search = HeavyHitters.calibrated(
        bits=24,
        cohort=20_000,
        epsilon=1.0,
        delta=1e-6,
        kind=kind,
        categories=1 << 12,
        width=64,
        groups=groups,
    )
    assert (
        0.98 <= accounted(search.round(), num_steps=search.num_steps).epsilon(1e-6, lower=False).upper <= 1.0
    )
    assert search.round().sampling is (Sampling.SINGLE_PASS if groups else Sampling.FULL)
    often = search.detectable(confidence=0.999_999)
    x = values(search, (5, 2 * often), (1 << 23, 2 * often), (123_456, 3 * often))
    found = search.find(x, randomness=SeededRandomness(2))
    assert {5, 1 << 23, 123_456} <= set(found.values.tolist())
    assert found.values[0] == 123_456
    assert len(found.values) <= 5
    assert float(found.counts[0]) * (search.rounds if groups else 1) == pytest.approx(3 * often, rel=0.5)


@pytest.mark.slow
def test_everybody_in_all_rounds_finds_rarer_values_than_groups() -> None:
    target = {"bits": 24, "cohort": 6_000, "epsilon": 1.0, "delta": 1e-6, "categories": 1 << 12, "width": 64}
    alone, grouped = (HeavyHitters.calibrated(**target, groups=groups) for groups in (False, True))
    assert alone.rounds == grouped.rounds == 3
    assert 1.5 < grouped.detectable() / alone.detectable() < 2.5


@pytest.mark.parametrize(
    "counts",
    [
        DecoyHistogram(categories=256, cohort=2_000, decoys=30.0, honest_fraction=0.5),
        LaplaceHistogram(categories=256, cohort=2_000, noise_epsilon=0.4, honest_fraction=0.5),
        HistogramSum(categories=256, cohort=2_000, levels=4, coins=3),
    ],
    ids=lambda counts: counts.name,
)
def test_false_positives_and_misses_are_as_predicted(counts: Any) -> None:
    """Exact tails of the noise, against noise as it is drawn."""
    search = HeavyHitters(bits=20, cohort=2_000, counts=counts, width=16, false_positives=50.0)  # to see some
    rate, threshold = 50.0 / (search.rounds * 256), search.threshold
    reached = counts.exceeding(threshold)
    assert reached <= rate < counts.exceeding(threshold - 1)
    source, held = SeededRandomness(3), search.detectable(confidence=0.8)
    answers = torch.full((2_000,), -1)
    answers[:held] = 7
    found = torch.stack([counts.randomize_sum(answers, randomness=source) for _ in range(300)])
    survived = (found >= threshold).double()
    wrong = torch.cat([survived[:, :7], survived[:, 8:]], dim=1)
    assert float(wrong.mean()) == pytest.approx(reached, abs=6 * math.sqrt(reached / wrong.numel()))
    missed = 1 - float(survived[:, 7].mean())
    assert search._missing(held) <= 0.2 / search.rounds < search._missing(held - 1)
    assert missed == pytest.approx(search._missing(held), abs=6 * math.sqrt(0.05 / 300))


def test_messages_stay_few() -> None:
    """Of what is asked alone there are decoys: after the first round, of few prefixes."""
    target = {"bits": 32, "epsilon": 1.0, "delta": 1e-6}
    for cohort, most in ((100_000, 75), (1_000_000, 11)):
        search = HeavyHitters.calibrated(cohort=cohort, **target)
        assert search.counts.messages_per_client < most
        question = PrefixQuestion(number=1, kept=torch.arange(5), kept_bits=16, asked_bits=24)
        assert search.asked(question).messages_per_client < 1 + most / 50
        assert search.detectable() < 95


def test_more_prefixes_than_can_be_kept_are_told() -> None:
    loud = small(decoys=1e-20)
    x = torch.arange(2_000) * 500
    found = loud.find(x)
    assert found.cut >= 1
    one = small(cohort=2, decoys=1e-20)
    assert one.find(torch.tensor([9, 9])).values.tolist() == [9]


def test_nothing_frequent_is_nothing_found() -> None:
    found = SMALL.find(torch.arange(2_000) * 500 % (1 << 20), randomness=SeededRandomness(4))
    assert isinstance(found, FoundValues)
    assert len(found.values) <= 2
