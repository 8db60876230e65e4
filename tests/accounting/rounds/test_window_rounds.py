"""Windows of sums: whole transcripts counted out, true histories, and sensitivities by explicit matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from accounted import accounted
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.stats import binom

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound, Round, WindowRound

Floats = NDArray[np.float64]

WEIGHTS, COINS, MOST = (2, 1), 64, 9  # no window's data exceed MOST, of three clients
SEEN = np.arange(-MOST, COINS + MOST + 1)
HISTORY = np.meshgrid(SEEN, SEEN, SEEN, indexing="ij", sparse=True)
HIGH = [seen > COINS / 2 for seen in HISTORY[:2]]  # all that adaptive clients look at of two windows
EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)


def window(**changes: object) -> WindowRound:
    fields: dict[str, object] = {"sensitivity": 2.0, "attained": 2, "trials": COINS, "dim": 1}
    fields |= {"population": 3, "cohort": 3, "coefficients": WEIGHTS}
    return WindowRound(**(fields | changes))  # type: ignore[arg-type]


def transcript(*sums: object) -> Floats:
    """The law of three windows; each round's sum is a number for each history of windows before it."""
    law = np.ones((1, 1, 1))
    for place, now in enumerate(sums):
        before = sums[place - 1] if place else 0
        shift = WEIGHTS[0] * np.asarray(now) + WEIGHTS[1] * np.asarray(before)
        law = law * binom.pmf(HISTORY[place] - shift, COINS, 0.5)
    return law


def apart(p: Floats, q: Floats) -> list[float]:
    return [float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for epsilon in EPSILONS]


def rules() -> Iterator[Floats]:
    """What a client holds in the third round, −1 or 1, by which of two windows were high."""
    for held in itertools.product((-1, 1), repeat=4):
        table = np.asarray(held).reshape(2, 2)
        yield table[HIGH[0].astype(int), HIGH[1].astype(int)]


def crowds() -> Iterator[tuple[object, object, object]]:
    """What the second client, in the second round, and the third, in the others, add."""
    yield 0, 0, 0
    yield 1, np.where(HIGH[0], 1, -1), np.where(HIGH[1], -1, 1)


def check(worst: list[float], one: WindowRound, *, above: int = 1, below: int = 1) -> None:
    """By so many such participations bounded from above, and from below."""
    upper, lower = accounted(one, num_steps=above), accounted(one, num_steps=below)
    for epsilon, exact in zip(EPSILONS, worst, strict=True):
        assert lower.delta(epsilon).lower <= exact * (1 + 1e-9), epsilon
        assert exact <= upper.delta(epsilon).upper * (1 + 1e-9), epsilon


@pytest.mark.slow
def test_no_transcript_of_a_client_that_comes_twice_leaks_more_than_certified() -> None:
    """Three rounds, b = 2, three clients, the first of them in the first and the third round.

    Its data in the third follow from the windows before. The last window that it would enter is not opened.
    """
    worst, once = [0.0] * len(EPSILONS), [0.0] * len(EPSILONS)
    for first, second, third in crowds():
        laws: dict[int, list[Floats]] = {}
        for held in (-1, 0, 1):
            laws[held] = [transcript(held + first, second, later + third) for later in rules()]
        for mine, yours in itertools.permutations(laws, 2):
            # Of rules that differ everywhere the worst is among opposite ones, which are counted out; of the
            # others every pair of a few.
            for i, j in itertools.product(range(16), repeat=2):
                if (j == 15 - i or (i + j) % 5 == 0) or i == j:
                    found = apart(laws[mine][i], laws[yours][j])
                    worst = list(map(max, worst, found))
                    if i == j:
                        once = list(map(max, once, found))
    check(worst, window(), above=2)
    check(once, window())
    assert worst[1] > 1.05 * once[1]


@pytest.mark.parametrize("weights", [(1, 1), (3, 2), (2, 0, 1)])
def test_both_ends_of_one_participation_are_near_its_windows_law(weights: tuple[int, ...]) -> None:
    trials, one = 400, window(coefficients=weights, trials=400)
    p, q = np.ones(1), np.ones(1)
    counts = np.arange(-8, trials + 9)
    for weight in weights:
        p, q = (
            np.multiply.outer(law, binom.pmf(counts - weight * held, trials, 0.5)).ravel()
            for law, held in ((p, 1), (q, -1))
        )
        kept = (p > 1e-12) | (q > 1e-12)
        p, q = p[kept], q[kept]
    for epsilon, exact in zip(EPSILONS, apart(p, q), strict=True):
        bound = accounted(one).delta(epsilon)
        assert exact - 1e-5 <= bound.lower <= exact + 1e-7
        assert exact <= bound.upper < 1.25 * exact + 2e-3  # so few coins are no close Gaussian


def test_a_client_that_takes_part_by_a_coin_of_its_own_costs_what_is_certified() -> None:
    rate, one = 0.3, window(participation=0.3, norm=1.0)
    held = {record: transcript(record, 0, 0) for record in (-1, 0, 1)}
    worst = [0.0] * len(EPSILONS)
    for mine, yours in itertools.permutations(held, 2):
        p, q = (rate * held[each] + (1 - rate) * held[0] for each in (mine, yours))
        worst = list(map(max, worst, apart(p, q)))
    check(worst, one)
    opened = accounted(one.opened()).delta(1.0)
    assert worst[2] < opened.lower
    assert opened == accounted(window()).delta(1.0)


def test_who_comes_back_early_is_charged_by_true_sums_of_coefficients() -> None:
    """In the first and the second of three rounds, b = 2: the window between has both vectors."""
    (broken,) = window().participations([0, 1])
    assert broken.coefficients == (2, 3, 1)
    worst = [0.0] * len(EPSILONS)
    for mine, yours in itertools.permutations(itertools.product((-1, 1), repeat=2), 2):
        answers = [np.where(HIGH[0], later, -later) for _, later in (mine, yours)]
        for later in (answers, (mine[1], yours[1])):
            laws = (transcript(held[0], now, 0) for held, now in zip((mine, yours), later, strict=True))
            worst = list(map(max, worst, apart(*laws)))
    check(worst, broken)
    assert worst[1] > accounted(window(), num_steps=1).delta(EPSILONS[1]).upper
    secret = window(participation=0.5)
    assert secret.participations([0, 2]) == (secret, secret)
    with pytest.raises(ValueError, match="twice within 2 rounds"):
        secret.participations([0, 1])


@pytest.mark.parametrize("weights", [(3, 2, 2), (1,), (4, 0, 1)])
def test_histories_have_the_sensitivity_of_explicit_matrices(weights: tuple[int, ...]) -> None:
    rounds, one = 7, window(coefficients=weights)
    matrix = toeplitz(np.r_[weights, np.zeros(rounds + len(weights))])
    matrix = np.tril(matrix)[:, :rounds]  # every window that anybody enters
    kept_apart = []
    for pattern in itertools.product((0, 1), repeat=rounds):
        indexes = np.flatnonzero(pattern)
        charged = sum(sum(c * c for c in each.coefficients) for each in one.participations(indexes.tolist()))
        exact = float(np.square(matrix @ pattern).sum())
        assert charged == pytest.approx(exact)
        if len(indexes) and np.diff(indexes).min(initial=rounds) >= len(weights):
            kept_apart.append(exact)
            assert one.participations(indexes.tolist()) == (one,) * len(indexes)
    most = -(-rounds // len(weights))
    assert max(kept_apart) == pytest.approx(most * sum(c * c for c in weights))


def test_windows_cost_what_a_sum_costs_whose_sensitivity_is_longer() -> None:
    one = window(coefficients=(3, 4), sensitivity=10.0, attained=0, trials=10**7, dim=5)
    same = window(coefficients=(1,), sensitivity=50.0, attained=0, trials=10**7, dim=10)
    for delta in (1e-3, 1e-6):
        found, expected = (accounted(each, num_steps=9).epsilon(delta).upper for each in (one, same))
        assert found == pytest.approx(expected, rel=1e-9)
    assert one.replacement_distance == pytest.approx(same.replacement_distance)
    assert one.replacement_ratio(-40) == pytest.approx(same.replacement_ratio(-40))
    assert Round.from_state(one.state()) == one
    assert "at most once in any 2 rounds" in one.secrecy


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"coefficients": ()}, "whole numbers"),
        ({"coefficients": (0, 1)}, "positive"),
        ({"coefficients": (1, 0)}, "positive"),
        ({"coefficients": (1.0,)}, "whole numbers"),
        ({"coefficients": (1, -1, 1)}, "whole numbers"),
        ({"coefficients": (1 << 17,)}, "whole numbers"),
        ({"population": 9, "sampling": "without-replacement"}, "without-replacement"),
    ],
)
def test_what_is_no_window_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        window(**changes)


class _Sum:
    """A mechanism whose rounds are windows."""

    local_epsilon, local_delta = math.inf, 0.0

    def round(self, **_: object) -> WindowRound:
        return window(coefficients=(3, 2), sensitivity=10.0, attained=10, trials=10**7, dim=5)


def test_a_federation_is_charged_by_participations_before_everybody_who_sees_windows() -> None:
    history, delta = FederatedAccountant(), 1e-5
    one = FederatedRound.drawn(_Sum(), candidates=12, invited=3, reports=3)
    for place in range(8):
        names = [f"{place % 4}-{client}" for client in range(3)]
        if place == 7:
            limit = {"max_epsilon": accounted(one.server, num_steps=2).epsilon(delta).upper, "delta": delta}
            for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
                assert not history.would_exceed(one, adversary=adversary, participants=names, **limit)
                assert history.would_exceed(one, adversary=adversary, **limit)
                assert history.would_exceed(one, adversary=adversary, participants=["0-0", *names], **limit)
        history.step(one, participants=names)
    twice = accounted(one.server, num_steps=2).epsilon(delta)
    found = history.spending(delta)
    assert (found.server.lower, found.server.upper) == pytest.approx((twice.lower, twice.upper))
    # An observer may know less than the server: nothing is said from below.
    assert (found.observer.lower, found.observer.upper) == pytest.approx((0, twice.upper))
    history.step(one, participants=None)  # everybody may have been in it
    assert history.epsilon(delta).upper == pytest.approx(
        accounted(one.server, num_steps=3).epsilon(delta).upper
    )
    loaded = FederatedAccountant()
    loaded.load_state_dict(history.state_dict())
    assert loaded.spending(delta) == history.spending(delta)
