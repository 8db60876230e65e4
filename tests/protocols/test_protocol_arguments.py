"""Arguments out of range: every protocol names what was passed, at once, and in the same words."""

import pytest

from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CountedUnary,
    CubeSum,
    FrequencyEstimation,
    HistogramSum,
    ScalarSum,
    SplitSum,
    TargetUnreachable,
    UnaryL1Sum,
    VectorSum,
)

KINDS = [
    (ScalarSum, {}),
    (SplitSum, {}),
    (VectorSum, {"dim": 3}),
    (BallSum, {"dim": 3}),
    (CubeSum, {"dim": 3}),
    (BinarySum, {"dim": 3}),
    (HistogramSum, {"categories": 3}),
    (FrequencyEstimation, {"categories": 3}),
    (CountedUnary, {"length": 3}),
    (UnaryL1Sum, {"dim": 3}),
]
WITHOUT_OVERHEAD = (FrequencyEstimation, CountedUnary, UnaryL1Sum)


@pytest.mark.parametrize(("kind", "own"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0}, r"^epsilon must be in \(0, inf\), got 0$"),
        ({"epsilon": "1"}, r"^epsilon must be a number in \(0, inf\), got '1'$"),
        ({"delta": 0}, r"^delta must be in \(0, 1\), got 0$"),
        ({"cohort": 1}, r"^cohort must be a whole number in \[2, 1,000,000,000,000,000\], got 1$"),
        ({"cohort": 10**400}, r"^cohort must be a whole number in \[2, 1,000,000,000,000,000\]"),
        ({"num_steps": 0}, r"^num_steps must be a whole number in \[1, 1,000,000,000,000\], got 0$"),
        (
            {"population": 100},
            "^population must be a whole number, at least the 200 clients of a cohort",
        ),
        ({"honest_fraction": "0.5"}, r"^honest_fraction must be a number in \(0, 1\], got '0.5'$"),
        ({"honest_fraction": 0}, r"^honest_fraction must be in \(0, 1\], got 0$"),
        ({"overhead": 0}, r"^overhead must be in \(0, 1\], got 0$"),
        ({"overhead": 1.5}, r"^overhead must be in \(0, 1\], got 1.5$"),
        ({"categories": 0}, r"^categories must be a whole number in \[2, 2\*\*53\], got 0$"),
        ({"categories": 1}, r"^categories must be a whole number in \[2, 2\*\*53\], got 1$"),
    ],
)
def test_a_wrong_argument_is_named(kind, own, changes, said):
    if "categories" in changes and "categories" not in own:
        pytest.skip("takes no categories")
    if "overhead" in changes and kind in WITHOUT_OVERHEAD:
        pytest.skip("has no overhead")
    arguments = {"cohort": 200, "epsilon": 1.0, "delta": 1e-6} | own | changes
    with pytest.raises(ValueError, match=said):
        kind.calibrated(**arguments)


@pytest.mark.parametrize("kind", [VectorSum, BallSum])
@pytest.mark.parametrize("changes", [{"overhead": 0}, {"honest_fraction": "0.5"}, {"cohort": 1}])
def test_so_it_is_with_noise(kind, changes):
    with pytest.raises(ValueError, match=f"^{next(iter(changes))} must be"):
        kind.with_noise(**({"dim": 3, "cohort": 200, "noise_multiplier": 1.0} | changes))


@pytest.mark.parametrize(("kind", "own"), KINDS[:3])
def test_a_target_that_no_coins_or_shares_keep_is_out_of_reach(kind, own):
    with pytest.raises(TargetUnreachable, match=r"larger (ε or )?δ"):
        kind.calibrated(cohort=200, epsilon=1.0, delta=1e-300, **own)


def test_rounds_name_the_population():
    for protocol in (
        ScalarSum(cohort=20, levels=1, coins=40),
        SplitSum(cohort=20, levels=1, noise_epsilon=1.0, shares=4),
        BinarySum(dim=2, cohort=20, budget=4.0, samples=2),
    ):
        with pytest.raises(ValueError, match=r"population must be .* 20 clients"):
            protocol.round(population=10)


@pytest.mark.parametrize("kind", [VectorSum, ScalarSum])
@pytest.mark.parametrize("changes", [{"cohort": 10**16}, {"cohort": 10**400}])
def test_a_cohort_beyond_all_populations_is_named(kind, changes):
    fields = {"levels": 6, "coins": 60} | ({"dim": 2} if kind is VectorSum else {})
    with pytest.raises(ValueError, match=r"^cohort must be a whole number in \[2, 1,000,000,000,000,000\]"):
        kind(**fields, **changes)
    with pytest.raises(ValueError, match=r"^population must be a whole number"):
        kind(**fields, cohort=20).round(population=10**400)
