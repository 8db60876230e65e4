"""What a refused argument is answered by, and numbers as text."""

import math

import numpy as np
import pytest

from shuffle_plugins.core import checks, rounded


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (1000.0, "got 1000.0: pass the int 1000"),
        (np.int64(7), "got np.int64(7): pass the int 7"),
        (1000.5, "got 1000.5"),
        (0.0, "got 0.0"),
        (math.inf, "got inf"),
        (math.nan, "got nan"),
        (True, "got True"),
        (10**400, f"got {10**400}"),
        ("7", "got '7'"),
    ],
)
def test_a_whole_number_of_another_type_is_answered_by_the_int_to_pass(value: object, answer: str) -> None:
    with pytest.raises(ValueError, match="must be a whole number") as refused:
        checks.whole("rounds", value, at_most=10**6)
    assert str(refused.value).endswith(answer)


@pytest.mark.parametrize(
    ("value", "up", "shown"),
    [
        (0.420801, True, "0.4209"),
        (0.420899, False, "0.4208"),
        (0.5, True, "0.5"),
        (99.991, True, "100"),
        (123_456.0, True, "123,500"),
        (1800.0, True, "1,800"),
        (1234.56, False, "1,234"),
        (999.96, True, "1,000"),
        (9_999_999.0, False, "9,999,000"),
        (2e10, True, "2e+10"),
        (5.1481e-05, True, "5.149e-05"),
        (0.0, False, "0"),
        (float("inf"), True, "inf"),
    ],
)
def test_rounding_goes_one_way(value: float, up: bool, shown: str) -> None:
    assert rounded(value, up=up) == shown
