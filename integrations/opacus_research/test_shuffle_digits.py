# Copyright (c) The shuffle-plugins authors

"""Small runs of the script."""

import pytest
import shuffle_digits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("randomizer", "least"),
    [("vector-sum", 0.8), ("privunit", 0.7), ("none", 0.85)],
)
def test_it_learns_within_its_budget(randomizer, least):
    accuracy, ends = shuffle_digits.main(["--randomizer", randomizer])
    assert accuracy > least
    if randomizer == "none":
        assert ends is None
    else:
        assert 0 < ends[0] <= ends[1] <= 3.0


def test_a_smaller_budget_is_kept():
    arguments = ["--epsilon", "0.5", "--epochs", "2", "-b", "500", "-c", "0.5"]
    _, (lower, upper) = shuffle_digits.main(arguments)
    assert 0 < lower <= upper <= 0.5
