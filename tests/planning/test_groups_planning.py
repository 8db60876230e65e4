"""Means over groups of different precision: unbiased, of the variance that is said, and as good as can be."""

import math

import pytest
import torch

from shuffle_plugins import get
from shuffle_plugins.planning import one_encoding_factor, report_worth, weigh_groups

REPORTS = {1.0: 40_000, 3.0: 20_000}
DIM = 3


def test_weights_of_groups_are_unbiased_and_precision_is_the_best_of_them() -> None:
    variances, clients = [4.0, 0.25, 1.0], [100, 10, 50]
    by_clients, by_precision = weigh_groups(variances, clients=clients), weigh_groups(variances)
    for found in (by_clients, by_precision):
        assert math.fsum(found.weights) == pytest.approx(1)
        assert found.combine([2.0, 2.0, 2.0]) == pytest.approx(2)
        assert found.variance == pytest.approx(
            math.fsum(w * w * v for w, v in zip(found.weights, variances, strict=True))
        )
    assert by_clients.combine([1.0, 5.0, 3.0]) == pytest.approx((100 + 50 + 150) / 160)
    assert by_precision.variance == pytest.approx(1 / math.fsum(1 / v for v in variances))
    assert by_precision.variance < by_clients.variance
    for refused in ({"variances": []}, {"variances": [1.0, 0.0]}, {"variances": [1.0], "clients": [1, 2]}):
        with pytest.raises(ValueError, match=r"variance"):
            weigh_groups(**refused)


@pytest.mark.parametrize("mechanism", ["linf-coordinate", "l1-hadamard"])
def test_both_ways_to_a_mean_are_unbiased_with_the_variance_that_is_said(mechanism: str) -> None:
    """One mean that all clients have in common: groups apart, and reports that do not show their group."""
    record = torch.tensor([0.4, -0.3, 0.1])
    means, variances, decoder = [], [], get(mechanism, local_epsilon=2.0, dim=DIM)
    together = torch.zeros(DIM)
    for level, count in REPORTS.items():
        own = get(mechanism, local_epsilon=level, dim=DIM)
        reports = own.randomize(record.expand(count, DIM))
        means.append(own.total(reports) / count)
        variances.append(own.worst_variance / count)
        together += decoder.total(reports)
    weighed = weigh_groups(variances)
    factor = one_encoding_factor(mechanism, groups=tuple(REPORTS.items()), decoded_at=2.0)
    bound = sum(REPORTS.values()) * factor**2 * decoder.worst_variance
    for mean, variance in ((weighed.combine(means), weighed.variance), (factor * together, bound)):
        # Deviations of the worst case; a coordinate has about a third of the variance.
        assert float((mean - record).abs().max()) < 6 * math.sqrt(variance)
    assert weighed.variance < bound < 2 * weighed.variance
    with pytest.raises(ValueError, match="mechanism must be one of"):
        one_encoding_factor("privunit", groups=((1.0, 2),), decoded_at=1.0)


def test_louder_reports_are_worth_what_variances_say() -> None:
    worth = report_worth("linf-coordinate", local_epsilon=1.0, louder=4.0, dim=10, norm="linf")
    # second moments d²·coth²(ε0/2) of vectors of squared length between 0 and d
    assert worth == pytest.approx((math.tanh(2.0) / math.tanh(0.5)) ** 2, rel=0.1)
