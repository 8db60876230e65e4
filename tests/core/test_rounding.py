import pytest

from shuffle_plugins.core import rounded


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
