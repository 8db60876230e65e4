"""What a refused argument is answered by."""

import math

import numpy as np
import pytest

from shuffle_plugins.core import checks


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
