import math

import pytest
import torch

from shuffle_plugins.compressors.quantization import (
    dithered_round,
    dithered_value,
    public_dither,
    stochastic_round,
)
from shuffle_plugins.randomness import Randomness, SeededRandomness


class Recorded(Randomness):
    """Words that are written down beforehand."""

    def __init__(self, words):
        self._words = words

    def words(self, count, *, device="cpu"):
        drawn, self._words = self._words[:count], self._words[count:]
        return drawn.clone().to(device)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 0.25, -0.25, 1e-4, 1 - 1e-4, 7.3, -1e6 - 0.6, 2.0**52 + 1])
def test_goes_up_exactly_below_its_threshold(value):
    low = math.floor(value)
    threshold = int((value - low) * 2.0**62)
    words = torch.tensor([0, max(threshold - 1, 0), threshold, (1 << 62) - 1, -1])
    found = stochastic_round(torch.full((5,), value, dtype=torch.float64), randomness=Recorded(words))
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


def test_many_values_are_rounded_in_chunks_from_one_stream():
    values = torch.rand(150_000, generator=torch.Generator().manual_seed(1))
    whole = stochastic_round(values, randomness=SeededRandomness(1))
    source = SeededRandomness(1)
    assert torch.equal(
        whole, torch.cat([stochastic_round(part, randomness=source) for part in values.split(9999)])
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**62])
def test_what_has_no_neighbours_is_refused(bad):
    with pytest.raises(ValueError, match="clip it first"):
        stochastic_round(torch.tensor([0.0, bad]), randomness=SeededRandomness(1))
    with pytest.raises(ValueError, match="clip it first"):
        dithered_round(torch.tensor([bad]), dither=torch.zeros(1))


def test_integers_are_refused():
    with pytest.raises(ValueError, match="floating point"):
        stochastic_round(torch.tensor([1]), randomness=SeededRandomness(1))
    with pytest.raises(ValueError, match="floating point"):
        dithered_round(torch.tensor([1]), dither=torch.zeros(1))


def test_dither_is_uniform_on_its_grid_and_public():
    dither = public_dither((200, 1000), seed=4)
    assert torch.equal(dither, public_dither((200, 1000), seed=4))
    assert not torch.equal(dither, public_dither((200, 1000), seed=5))
    assert dither.dtype == torch.float64
    assert float(dither.abs().max()) < 0.5
    cells = (dither + 0.5) * 2.0**32 - 0.5
    assert torch.equal(cells, cells.round())
    counts = torch.histc(dither.reshape(-1), bins=100, min=-0.5, max=0.5)
    chi = float(((counts - 2000) ** 2 / 2000).sum())
    assert chi < 99 + 5 * math.sqrt(2 * 99)
    assert public_dither(0, seed=1).shape == (0,)
    with pytest.raises(ValueError, match="public seed"):
        public_dither(3, seed=1.5)


@pytest.mark.parametrize("value", [0.0, 0.5, -0.5, 0.123456, -7.75, 1e6 + 1 / 3])
def test_dithered_values_are_unbiased_over_the_grid(value):
    """A dither in the middle of each of n equal cells: the mean error over them is at most 1/(2n)."""
    for cells in (1 << 10, 1 << 16):
        dither = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells - 0.5
        values = torch.full((cells,), value, dtype=torch.float64)
        errors = dithered_value(dithered_round(values, dither=dither), dither=dither) - values
        assert float(errors.abs().max()) <= 0.5
        assert abs(float(errors.mean())) <= 0.5 / cells + 2.0**-52 * abs(value)
        assert float(errors.var()) == pytest.approx(1 / 12, rel=0.01)


def test_the_error_does_not_depend_on_the_value():
    count = 200_000
    dither = public_dither((2, count), seed=9)
    values = torch.stack([torch.full((count,), 0.5), torch.linspace(-5, 5, count)]).double()
    errors = dithered_value(dithered_round(values, dither=dither), dither=dither) - values
    assert float(errors.mean(dim=1).abs().max()) < 4 * math.sqrt(1 / 12 / count)
    assert errors.var(dim=1).tolist() == pytest.approx([1 / 12, 1 / 12], rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack([errors[1], values[1]]))[0, 1])) < 4 / math.sqrt(count)


def test_dither_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="as many dithers"):
        dithered_round(torch.zeros(3), dither=torch.zeros(2))
    with pytest.raises(ValueError, match="as many dithers"):
        dithered_value(torch.zeros(3, dtype=torch.int64), dither=torch.zeros(2))
