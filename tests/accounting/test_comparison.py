from dataclasses import replace

import pytest
from histories import shuffled
from thinning import first_fast

from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    PoissonBinomialRound,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.comparison import (
    OutOfRange,
    PublishedAccountant,
    _fixed_cohort,
    _published,
    compare,
)
from shuffle_plugins.accounting.published.catalogue import PUBLISHED_BOUNDS, published_bound
from shuffle_plugins.accounting.terms import NamedBound

GIRGIS, CLONES = "subsampled shuffle RDP, published", "clones, closed form"


@pytest.mark.slow
def test_bounds_are_ordered_and_bracket_the_interval() -> None:
    found = compare(shuffle_round=shuffled(0.5, 50_000, 5_000), num_steps=50, delta=1e-5)
    uppers = [bound.epsilon for bound in found.bounds if bound.kind == "upper"]
    lowers = [bound.epsilon for bound in found.bounds if bound.kind == "lower"]
    assert uppers == sorted(uppers)
    assert lowers == sorted(lowers, reverse=True)
    assert lowers[0] <= uppers[0] == found.interval.upper
    assert len({bound.name for bound in found.bounds}) == len(found.bounds)


@pytest.mark.slow
def test_every_published_bound_is_listed_or_says_why_not() -> None:
    found = compare(shuffle_round=shuffled(0.5, 50_000, 5_000), num_steps=50, delta=1e-5)
    listed = {bound.name: bound for bound in found.bounds}
    left = {each.name: each.reason for each in found.out_of_range}
    assert listed.keys() & left.keys() == set()
    assert {bound.name for bound in PUBLISHED_BOUNDS} <= listed.keys() | left.keys()
    assert left == {bound.name: bound.note for bound in PUBLISHED_BOUNDS if not bound.valid}
    question = {"local_epsilon": 0.5, "population": 50_000, "cohort": 5_000, "num_steps": 50, "delta": 1e-5}
    for bound in PUBLISHED_BOUNDS:
        if bound.valid:
            assert listed[bound.name].kind == "upper"
            assert listed[bound.name].source == bound.source
            assert listed[bound.name].epsilon == bound.epsilon(**question)


@first_fast(
    ("sampling", "adversary", "population"),
    [
        (Sampling.WITHOUT_REPLACEMENT, Adversary.MODEL_OBSERVER, 20_000),
        (Sampling.WITHOUT_REPLACEMENT, Adversary.SERVER, 5_000),
        (Sampling.SINGLE_PASS, Adversary.MODEL_OBSERVER, 5_000),
    ],
)
def test_published_bounds_see_the_population_that_hides_the_sample(
    sampling: Sampling, adversary: Adversary, population: int
) -> None:
    found = compare(
        shuffle_round=shuffled(0.5, 20_000, 5_000, sampling=sampling, adversary=adversary),
        num_steps=7,
        delta=1e-5,
    )
    epsilons = {bound.name: bound.epsilon for bound in found.bounds}
    question = {"local_epsilon": 0.5, "population": population, "cohort": 5_000}
    assert epsilons[GIRGIS] == published_bound(GIRGIS).epsilon(**question, num_steps=7, delta=1e-5)
    assert epsilons[CLONES] == published_bound(CLONES).epsilon(**question, num_steps=7, delta=1e-5)


def test_reports_with_a_tail_are_not_taken_for_pure_ones() -> None:
    tailed = replace(Blanket.generic(1.0, exact=False), tail=1e-13)
    asked = shuffled(1.0, 200, 20, mechanism="mine", blanket=tailed)
    with pytest.raises(ValueError, match="these are"):
        _fixed_cohort(asked, adaptive=True)


def test_an_epoch_gets_no_bound_for_inputs_that_were_fixed_before() -> None:
    for adversary, left_out in ((Adversary.MODEL_OBSERVER, True), (Adversary.SERVER, False)):
        epoch = shuffled(0.4, 2_000, 1_000, sampling="epoch", adversary=adversary)
        for bound in (published_bound(GIRGIS), published_bound("privacy blanket, Bennett")):
            found = _published(bound, epoch, num_steps=1, delta=1e-5)
            assert isinstance(found, OutOfRange) is left_out
            chosen = _published(bound, replace(epoch, channel_fixed=False), num_steps=1, delta=1e-5)
            assert isinstance(chosen, OutOfRange)
            assert "fixed before the round" in str(found) or not left_out
        assert isinstance(_published(published_bound(CLONES), epoch, num_steps=1, delta=1e-5), NamedBound)


def test_bounds_out_of_their_range_say_why() -> None:
    poisson = compare(
        shuffle_round=shuffled(0.5, 2_000, 200.5, sampling=Sampling.POISSON), num_steps=7, delta=1e-5
    )
    assert {each.name for each in poisson.out_of_range} == {bound.name for bound in PUBLISHED_BOUNDS}
    notes = {bound.note for bound in PUBLISHED_BOUNDS if not bound.valid}
    assert all("poisson" in each.reason or each.reason in notes for each in poisson.out_of_range)
    small = compare(shuffle_round=shuffled(2.0, 2_000, 200), num_steps=7, delta=1e-5)
    reasons = {each.name: each.reason for each in small.out_of_range}
    assert "Theorem 3.1 needs" in reasons[CLONES]
    assert "Theorem 7 needs" in reasons["amplification by shuffling"]
    assert GIRGIS not in reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"local_delta": 1e-12}, "(ε0, δ0)"), ({"sampling": Sampling.CHECK_IN}, "check-in")],
)
def test_rounds_that_the_theorems_do_not_treat_get_no_published_bound(
    change: dict[str, object], reason: str
) -> None:
    question = {"local_epsilon": 0.5, "population": 2_000, "cohort": 200} | change
    found = compare(shuffle_round=ShuffleRound(**question, channel_fixed=True), num_steps=7, delta=1e-5)
    valid = {bound.name for bound in PUBLISHED_BOUNDS if bound.valid}
    assert valid <= {each.name for each in found.out_of_range if reason in each.reason}
    assert not {bound.name for bound in found.bounds} & valid


@pytest.mark.slow
def test_an_epoch_gets_the_bounds_that_allow_inputs_to_follow_earlier_reports() -> None:
    common = {"local_epsilon": 0.4, "population": 2_000}
    epoch = ShuffleRound(**common, cohort=100, sampling="epoch")
    everybody = compare(
        shuffle_round=ShuffleRound(**common, cohort=2_000, sampling="full", channel_fixed=True),
        num_steps=7,
        delta=1e-5,
    )
    found = compare(shuffle_round=epoch, num_steps=7, delta=1e-5)
    assert found.interval.lower == everybody.interval.lower
    assert found.interval.upper > everybody.interval.upper  # there all clients share a randomizer
    theirs = {bound.name: bound.epsilon for bound in everybody.bounds}
    adaptive = {bound.name for bound in PUBLISHED_BOUNDS if bound.adaptive}
    listed = {bound.name: bound.epsilon for bound in found.bounds if bound.name in adaptive}
    assert {CLONES, "clones, numerical", "amplification by shuffling"} <= set(listed)
    assert all(listed[name] == theirs[name] >= found.interval.upper for name in listed)
    reasons = {each.name: each.reason for each in found.out_of_range}
    assert "fixed before the round" in reasons[GIRGIS]
    assert "privacy blanket, Bennett" in reasons


def test_an_accountant_by_theorem_1_as_published() -> None:
    """Of one kind what the catalogue says; two kinds cost more than each, and no more than both together."""
    kinds = [(shuffled(e, 60_000, 10_000), t) for e, t in ((1.5, 1200), (1.0, 300))]
    both, own = PublishedAccountant(), ShuffleAccountant()
    assert both.epsilon(1e-5).upper == 0
    alone = []
    for kind, steps in kinds:
        one = PublishedAccountant()
        for each in (one, both, own):
            each.step(kind, num_steps=steps)
        asked = {"local_epsilon": kind.local_epsilon, "population": 60_000, "cohort": 10_000}
        alone.append(published_bound(GIRGIS).epsilon(**asked, num_steps=steps, delta=1e-5))
        assert one.epsilon(1e-5).upper == pytest.approx(alone[-1], rel=1e-6)
    assert alone[0] == pytest.approx(3.0859, abs=1e-4)  # the pair's: 0.423
    found = both.epsilon(1e-5)
    assert alone[0] < found.upper < sum(alone)
    assert found.lower == own.epsilon(1e-5).lower
    assert both.would_exceed(kinds[0][0], target_epsilon=found.upper, delta=1e-5)
    bits = PoissonBinomialRound(
        population=9, cohort=9, dim=1, bits=1, flip=0.2, distance=2.0, sampling=Sampling.FULL
    )
    for other in (bits, replace(kinds[0][0], sampling=Sampling.POISSON)):
        with pytest.raises(ValueError, match="Theorem 1"):
            PublishedAccountant().step(other)
