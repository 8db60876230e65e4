"""A privacy statement says what its accountant says, in three forms, and never guesses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from histories import shuffled

from shuffle_plugins.accounting import (
    Adversary,
    BitEncoding,
    CountedRound,
    Cover,
    DataAccess,
    FederatedAccountant,
    FederatedRound,
    LaplaceRound,
    PoissonBinomialRound,
    PrivacyStatement,
    Round,
    SampledRecordsRound,
    Sampling,
    SeveralReportsRound,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
    Tag,
    TaggedRound,
    Unit,
)

DELTA = 1e-6
BINARY = shuffled(1.0, 1000, 100)
SUM = SumRound(
    population=1000, cohort=100, sensitivity=10.0, trials=40_000, dim=3, sampling="without-replacement"
)
EVERY_KIND = [
    BINARY,
    SampledRecordsRound.of(BINARY, records_per_client=5),
    SeveralReportsRound.of(BINARY, reports_per_client=2),
    SUM,
    CountedRound(population=500, cohort=500, bit_epsilon=1.0, length=4, encoding=BitEncoding.OPTIMAL),
    LaplaceRound(population=50, cohort=50, noise_epsilon=1.0, sensitivity=2),
    PoissonBinomialRound(population=900, cohort=900, dim=2, bits=4, flip=0.25, distance=2.0),
    TaggedRound(population=500, cohort=500, tags=(Tag(local_epsilon=0.5, count=2, places=False),)),
]


def accountant_of(*rounds: Round, steps: int = 1) -> ShuffleAccountant:
    accountant = ShuffleAccountant()
    for each in rounds:
        accountant.step(each, num_steps=steps)
    return accountant


def stated(*rounds: Round, steps: int = 1, delta: float = DELTA, **about: Any) -> PrivacyStatement:
    return PrivacyStatement.of(accountant_of(*rounds, steps=steps), delta=delta, **about)


def sentences(value: Any) -> list[str]:
    """Every piece of prose in a statement's plain values."""
    if isinstance(value, dict):
        return [
            text
            for key, each in value.items()
            if key not in ("schema", "versions")
            for text in sentences(each)
        ]
    if isinstance(value, list):
        return [text for each in value for text in sentences(each)]
    return [value] if isinstance(value, str) and " " in value else []


def test_a_statement_of_nothing_says_that_nothing_was_recorded() -> None:
    found = stated()
    (only,) = found.guarantees
    assert (only.adversary, only.epsilon.upper, found.num_rounds, found.rounds) == ("any", 0.0, 0, ())
    assert only.epsilon.adversary == "any"
    assert found.released.startswith("no round was recorded")
    text = str(found)
    assert "nothing recorded" in text
    assert "No round was recorded: this says nothing of anything that was released all the same." in text
    assert "ε covers" not in text


@pytest.mark.parametrize("each", EVERY_KIND, ids=lambda each: each.KIND)
def test_every_kind_of_round_says_what_may_be_seen_and_what_is_secret(each: Round) -> None:
    found = stated(each, steps=2, delta=1e-4)
    (rounds,) = found.rounds
    assert type(each).seen is not Round.seen
    assert (rounds.seen, rounds.secrecy, rounds.mechanism, rounds.rounds) == (
        each.seen,
        each.secrecy,
        each.description,
        2,
    )
    assert rounds.unreleased == 0
    assert found.released.startswith("what the rounds release")
    assert found.guarantees[0].epsilon == accountant_of(each, steps=2).epsilon(1e-4)
    assert found.unit is (Unit.RECORD if isinstance(each, SampledRecordsRound) else Unit.CLIENT)
    together = sum("add to it" in r.seen or "nobody's own" in r.seen for r in EVERY_KIND)
    assert together == 4  # sums hide what each client adds, messages hide only whose they are


def test_no_kind_of_this_package_is_silent() -> None:
    own = [cls for cls in _subclasses(Round) if cls.__module__.startswith("shuffle_plugins.")]
    assert {type(each) for each in EVERY_KIND} <= set(own)
    assert [cls.__name__ for cls in own if cls.seen is Round.seen] == []


def _subclasses(cls: type[Round]) -> set[type[Round]]:
    return {
        each for sub in cls.__subclasses__() for each in {sub, *_subclasses(sub)} if "KIND" in each.__dict__
    }


@pytest.mark.parametrize("sampling", Sampling)
@pytest.mark.parametrize("adversary", [Adversary.MODEL_OBSERVER, Adversary.SERVER])
def test_what_must_be_secret_follows_from_sampling_and_adversary(sampling: str, adversary: Adversary) -> None:
    cohort = 1000 if sampling is Sampling.FULL else 100
    each = shuffled(1.0, 1000, cohort, sampling=sampling, adversary=adversary)
    hidden = sampling not in (Sampling.FULL, Sampling.SINGLE_PASS) and adversary is Adversary.MODEL_OBSERVER
    assert ("must not learn" in each.secrecy) == hidden
    assert ("the adversary sees who takes part" in each.secrecy) == (adversary is Adversary.SERVER)


def test_a_secret_coin_must_stay_secret() -> None:
    plain = SumRound(population=100, cohort=100, sensitivity=10.0, trials=40_000, dim=3)
    coin = SumRound(population=100, cohort=100, sensitivity=10.0, trials=40_000, dim=3, participation=0.5)
    assert "coin" not in plain.secrecy
    assert "a coin of its own, which nobody else may see" in coin.secrecy


def test_three_forms_say_the_same() -> None:
    found = stated(
        *EVERY_KIND[:4],
        steps=3,
        delta=1e-5,
        subject="a *test*",
        target_epsilon=1e-3,
        trust=["the <mixer>"],
        accesses=[DataAccess(what="a mean", cover=Cover.NOT_COVERED, detail="it was printed")],
    )
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    text = " ".join(str(found).split())
    markdown = re.sub(r"\\([\\`*<\]])", r"\1", found.to_markdown())
    wanted = sentences(plain)
    assert len(wanted) > 30
    for sentence in wanted:
        bare = sentence[1:].removesuffix(".")
        assert bare in text, sentence
        assert bare in markdown, sentence
    assert "a \\*test\\*" in found.to_markdown()
    assert "\\<mixer>" in found.to_markdown()
    assert max(map(len, str(found).splitlines())) <= 100


def test_plain_values_say_what_is_not_known() -> None:
    found = stated(BINARY).to_dict()
    assert (found["budget"], found["clients"]) == (None, None)
    observer, local = found["guarantees"]
    assert observer["lower"] == accountant_of(BINARY).epsilon(DELTA).lower > 0
    assert local["lower"] is None  # none is known, which 0 would not say
    assert local["lower_bound"] == "none"


def test_what_nobody_said_is_unknown() -> None:
    found = stated(BINARY)
    assert found.trust[0].startswith("unknown")
    assert found.clipping.startswith("unknown")
    assert any(each.cover is Cover.UNKNOWN for each in found.accesses)


def test_without_an_epsilon_there_is_none_and_a_reason() -> None:
    loud = shuffled(1.0, 100, 100, sampling="full", local_delta=1e-3)
    for each, reason in ((loud, "δ0"), (SUM, "noise")):
        found = stated(each, delta=1e-300)
        observer, local = found.guarantees
        assert (observer.epsilon, local.epsilon) == (None, None)
        assert found.released == "nothing, as there is none"
        assert reason in observer.detail
        assert "not private by itself, or Σ δ0" in local.detail
        assert f"No ε at δ = 1e-300, adversary: {observer.adversary}." in str(found)
        plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert [each["upper"] for each in plain["guarantees"]] == [None, None]


def test_local_deltas_are_stated_and_add_up() -> None:
    each = shuffled(0.5, 100, 100, sampling="full", local_delta=1e-12)
    found = stated(each, steps=10)
    assert found.rounds[0].local_delta == 1e-12
    assert found.guarantees[-1].epsilon.upper == pytest.approx(5.0)
    assert stated(each, steps=10, delta=9e-12).guarantees[-1].epsilon is None


def test_a_budget_is_compared_at_its_own_delta() -> None:
    spent = accountant_of(BINARY, steps=50).epsilon(1e-8).upper
    for epsilon, exceeded in ((spent * 0.99, True), (spent, False)):
        found = stated(BINARY, steps=50, target_epsilon=epsilon, target_delta=1e-8)
        assert found.target.exceeded is exceeded
        assert any("is exceeded" in warning for warning in found.warnings) is exceeded
        assert ("EXCEEDS" in str(found)) is exceeded


def test_histories_of_several_mechanisms_are_listed_by_kind() -> None:
    counts = [shuffled(1.0, 1000, k, sampling="without-replacement") for k in (80, 120, 90)]
    found = stated(counts[0], SUM, counts[1], counts[2])
    first, second = found.rounds
    assert (first.rounds, first.cohort, first.population) == (3, (80, 120), (1000, 1000))
    assert (second.rounds, second.mechanism) == (1, SUM.description)
    assert "k = 80 to 120 of n = 1,000 clients" in str(found)
    many = stated(*(shuffled(1 + i / 16, 9, 9) for i in range(16)))
    assert "4 rounds of 4 more kinds" in str(many)
    assert len(many.to_dict()["rounds"]) == 16


def test_sampled_records_are_stated_for_single_records() -> None:
    found = stated(EVERY_KIND[1], BINARY, unit=Unit.USER)
    assert found.unit is Unit.RECORD
    assert "may see which of its records a client draws" in found.rounds[0].secrecy
    assert stated(BINARY, unit="user").unit is Unit.USER
    with pytest.raises(ValueError, match="unit must be one of"):
        stated(BINARY, unit="person")


def test_names_that_nobody_sees_leave_no_guarantee_against_who_sees_them() -> None:
    assert [each.adversary for each in stated(BINARY).guarantees] == ["model-observer", "local"]
    found = stated(BINARY, senders_known=False)
    assert [each.adversary for each in found.guarantees] == ["model-observer"]


def test_rounds_of_one_kind_are_added_up() -> None:
    accountant = FederatedAccountant()
    drawn = FederatedRound.drawn(Randomizer(), candidates=200, invited=40, reports=40)
    for released in (True, False, False):
        accountant.step(drawn, participants=people(0), released=released)
    (rounds,) = PrivacyStatement.of(accountant, delta=DELTA).rounds
    assert (rounds.rounds, rounds.unreleased) == (3, 2)


def test_a_round_of_somebody_else_is_not_guessed() -> None:
    class Opaque(ShuffleRound):
        KIND = "opaque"

        @property
        def seen(self) -> str:
            return Round.seen.fget(self)

    found = stated(Opaque(local_epsilon=1.0, population=10, cohort=10))
    assert "which they do not say" in str(found)


# -- federated ----------------------------------------------------------------------------------------------


class Randomizer:
    local_epsilon, local_delta = 1.0, 0.0

    def round(self, **who: Any) -> ShuffleRound:
        return ShuffleRound(local_epsilon=1.0, **who, channel_fixed=True)


def federated(participants: list[list[str] | None]) -> FederatedAccountant:
    accountant = FederatedAccountant()
    for names in participants:
        one = FederatedRound.drawn(Randomizer(), candidates=200, invited=40, reports=40)
        accountant.step(one, participants=names)
    return accountant


def people(first: int, count: int = 40) -> list[str]:
    return [str(client) for client in range(first, first + count)]


def test_a_federated_statement_has_the_worst_client_and_the_spread() -> None:
    accountant = federated([people(0), people(30), people(30), people(30)])
    found = PrivacyStatement.of(accountant, delta=DELTA)
    spending = accountant.spending(DELTA)
    assert [each.adversary for each in found.guarantees] == ["model-observer", "server", "local"]
    assert [each.epsilon.upper for each in found.guarantees] == [
        spending.observer.upper,
        spending.server.upper,
        spending.local_epsilon,
    ]
    assert "in 4 of 4 rounds" in found.guarantees[1].detail
    spread = found.spread
    assert (spread.clients, spread.fewest_rounds, spread.median_rounds, spread.most_rounds) == (70, 1, 3, 4)
    alone = federated([people(0)]).epsilon(DELTA, adversary=Adversary.SERVER, lower=False).upper
    assert spread.fewest_epsilon == pytest.approx(alone, rel=1e-9)
    assert spread.fewest_epsilon < spread.median_epsilon < spending.server.upper
    assert "Rounds of a client, of 70 known by name" in str(found)
    assert found.to_dict()["clients"]["median_rounds"] == 3


def test_unnamed_rounds_are_everybodys_and_new_names_end_the_spread() -> None:
    accountant = federated([people(0), None])
    assert accountant.client_spread(DELTA).fewest_rounds == 2
    accountant.rename()
    assert accountant.client_spread(DELTA).clients == 40  # nobody has a new name yet
    accountant.step(
        FederatedRound.drawn(Randomizer(), candidates=200, invited=40, reports=40), participants=people(0)
    )
    assert accountant.client_spread(DELTA) is None
    assert federated([None]).client_spread(DELTA) is None
    found = PrivacyStatement.of(accountant, delta=DELTA)
    assert found.spread is None
    assert found.to_dict()["clients"] is None
    assert "known by name" not in str(found)


@pytest.mark.slow
def test_secret_participation_and_rounds_that_let_nothing_out() -> None:
    accountant = FederatedAccountant()
    drawn = FederatedRound.drawn(Randomizer(), candidates=200, invited=40, reports=40)
    secret = FederatedRound.secret(Randomizer(), answered=200, reports=40, rate=0.2)
    accountant.step(drawn, participants=people(0), released=False)
    accountant.step(secret, participants=people(0, 200))
    found = PrivacyStatement.of(
        accountant, delta=DELTA, target_epsilon=0.01, target_adversary=Adversary.SERVER
    )
    first, second = found.rounds
    assert (first.unreleased, second.unreleased) == (1, 0)
    assert "against the server this earns nothing" in first.secrecy
    assert "neither the adversary nor the server may learn who sent which" in second.secrecy
    assert "1 of which let nothing out" in str(found)
    assert (found.target.adversary, found.target.exceeded) == ("server", True)


@pytest.mark.slow
def test_a_budget_that_ended_a_run_is_not_exceeded() -> None:
    accountant, budget = FederatedAccountant(), 0.1
    for index in range(100):
        one = FederatedRound.drawn(Randomizer(), candidates=2000, invited=100, reports=70 + 7 * index % 9)
        if accountant.would_exceed(one, max_epsilon=budget, delta=DELTA):
            break
        accountant.step(one, participants=None)
    assert 5 < accountant.num_rounds < 100
    loaded = FederatedAccountant()
    loaded.load_state_dict(accountant.state_dict())  # it does not know what the first was allowed
    found = PrivacyStatement.of(loaded, delta=DELTA, target_epsilon=budget)
    assert not found.target.exceeded


def test_delta_is_warned_of_where_it_is_above_one_in_the_largest_population() -> None:
    """Whoever is in a round of 1,000 clients is one in 1,000, whatever other rounds there were."""
    few = shuffled(1.0, 10, 10)
    for delta, warned in ((0.0009, False), (0.005, True), (0.2, True)):
        told = stated(few, BINARY, delta=delta).warnings
        assert any("δ is above 1/population" in each for each in told) is warned
