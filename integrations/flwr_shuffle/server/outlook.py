"""What a run can be expected to learn beside its noise, told before anything is sent."""

from __future__ import annotations

import logging
import math

from flwr_shuffle.randomizers import Randomizer
from shuffle_plugins.planning import ExpectedNoise, expected_noise
from shuffle_plugins.protocols.sum_reports import SumReports

_log = logging.getLogger("flwr")


def tell_outlook(mechanism: Randomizer, *, reports: float, num_rounds: int) -> None:
    """Log how a round's noise compares with the largest mean that clipping allows, and warn if noise wins.

    It wins if the noise of all rounds together is expected to be longer than all their means, were every
    update as long as clipping allows and all of them in one direction. Then the model moves by noise more
    than by training, however it is trained.

    Args:
        mechanism: built for the model.
        reports: expected in one round.
        num_rounds: of the whole run.
    """
    vectors = mechanism.protocol if isinstance(mechanism, SumReports) else mechanism
    outlook = expected_noise(vectors, cohort=reports)
    over = outlook.signal_to_noise_ratio_over(num_rounds)
    _log.info(
        "Expected noise: %.3g long in the mean of %.0f reports of %s numbers; the largest mean that clipping "
        "allows is %.3g long. Signal to noise: at most %.2g in one round, %.2g over all %d",
        outlook.noise,
        reports,
        f"{outlook.dim:,}",
        outlook.largest_signal,
        outlook.signal_to_noise_ratio,
        over,
        num_rounds,
    )
    if over < 1:
        _log.warning(
            "This run will move the model by noise more than by training: signal to noise is at most %.2g "
            "over all rounds. What would help: about %s reports in each round, for a ratio of 1; or %s",
            over,
            f"{_reports_for_one(outlook, over):,.0f}",
            "; ".join(outlook.remedies()[1:]),
        )


def _reports_for_one(outlook: ExpectedNoise, ratio: float) -> float:
    """Reports of a round with which the ratio would be 1; a sum is meant to be built anew for as many."""
    more = 1 / ratio if outlook.local_epsilon is None else 1 / ratio**2
    return math.ceil(outlook.cohort * more)
