"""Every registered mechanism, whoever adds it, keeps the promises of its interface."""

import pytest

from shuffle_plugins.mechanisms import available
from shuffle_plugins.testing import Status, check_mechanism

VECTORS = (1, 7)
CATEGORIES = (2, 7)
DIMS = dict.fromkeys(
    (
        "hadamard-response",
        "k-rr",
        "limited-hadamard",
        "local-hashing",
        "oue",
        "rappor",
        "subset-selection",
    ),
    CATEGORIES,
) | {"binary-rr": (1,)}
SAMPLES = 20_000


@pytest.mark.parametrize("name", available())
def test_mechanism_conforms(name):
    report = check_mechanism(name, dims=DIMS.get(name, VECTORS), samples=SAMPLES)
    report.raise_on_failure()
    assert any(result.status is Status.PASSED for result in report.of("builds"))


def test_every_row_of_the_table_is_a_mechanism():
    assert set(DIMS) <= set(available())
