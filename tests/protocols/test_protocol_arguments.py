"""Arguments out of range: every protocol names what was passed, at once."""

import pytest

from shuffle_plugins.protocols import (
    BallSum,
    CountedUnary,
    FrequencyEstimation,
    SplitSum,
    TargetUnreachable,
    VectorSum,
)
from shuffle_plugins.protocols.sums import honest_population

KINDS = [
    (SplitSum, {}),
    (VectorSum, {"dim": 3}),
    (BallSum, {"dim": 3}),
    (FrequencyEstimation, {"categories": 3}),
    (CountedUnary, {"length": 3}),
]


@pytest.mark.parametrize(("kind", "own"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": "1"},
        {"delta": 0},
        {"cohort": 1},
        {"num_steps": 0},
        {"population": 100},
        {"honest_fraction": 0},
    ],
)
def test_a_wrong_argument_is_named(kind, own, changes):
    with pytest.raises(ValueError, match=f"^{next(iter(changes))} must be"):
        kind.calibrated(**({"cohort": 200, "epsilon": 1.0, "delta": 1e-6} | own | changes))


@pytest.mark.parametrize(("kind", "own"), KINDS[:2])
def test_a_target_that_no_coins_or_shares_keep_is_out_of_reach(kind, own):
    with pytest.raises(TargetUnreachable, match=r"larger (ε or )?δ"):
        kind.calibrated(cohort=200, epsilon=1.0, delta=1e-300, **own)


@pytest.mark.parametrize(
    ("clients", "share", "honest"),
    [
        (10, 0.7, 7),
        (100, 0.29, 29),
        (10**12, 0.9999999999999, 10**12 - 1),
        (10**15, 0.1234567890123459, 123456789012345),
    ],
)
def test_no_client_is_counted_on_that_the_share_does_not_hold(
    clients: int, share: float, honest: int
) -> None:
    assert honest_population(clients, share) == honest
