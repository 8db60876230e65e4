import math

import pytest
import torch
from scripted_randomness import GivenWords

from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.randomness import SeededRandomness


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 0.25, -0.25, 1e-4, 1 - 1e-4, 7.3, -1e6 - 0.6, 2.0**52 + 1])
def test_goes_up_exactly_below_its_threshold(value):
    low = math.floor(value)
    threshold = int((value - low) * 2.0**62)
    words = [0, max(threshold - 1, 0), threshold, (1 << 62) - 1, -1]
    found = stochastic_round(torch.full((5,), value, dtype=torch.float64), randomness=GivenWords(*words))
    ups = [threshold > 0, threshold - 1 >= 0, False, False, False]
    assert (found - low).tolist() == [int(up) for up in ups]
    assert abs(threshold * 2.0**-62 - (value - low)) <= 2.0**-53


def test_mean_and_variance():
    count = 400_000
    for value in (0.3, -2.75):
        fraction = value - math.floor(value)
        found = stochastic_round(torch.full((count,), value), randomness=SeededRandomness(3)).double()
        deviation = math.sqrt(fraction * (1 - fraction))
        assert abs(float(found.mean()) - value) < 4 * deviation / math.sqrt(count)
        assert float(found.var()) == pytest.approx(deviation**2, rel=0.02)


def test_whole_numbers_stay_and_shapes_too():
    values = torch.arange(-600.0, 600.0).reshape(3, 4, 100)
    found = stochastic_round(values, randomness=SeededRandomness(1))
    assert found.dtype == torch.int64
    assert torch.equal(found, values.to(torch.int64))
    assert stochastic_round(torch.zeros(0, 5), randomness=SeededRandomness(1)).shape == (0, 5)
    for dtype in (torch.float16, torch.bfloat16):
        found = stochastic_round(torch.tensor([2.5], dtype=dtype), randomness=SeededRandomness(1))
        assert found.item() in (2, 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**62])
def test_what_has_no_neighbours_is_refused(bad):
    with pytest.raises(ValueError, match="clip it first"):
        stochastic_round(torch.tensor([0.0, bad]), randomness=SeededRandomness(1))
