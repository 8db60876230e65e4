"""The range in which drawn numbers of heads lie: nothing is drawn outside, and its ends are reached."""

from __future__ import annotations

import pytest
import torch

from shuffle_plugins.protocols import draws as sampling
from shuffle_plugins.protocols.draws import COINS_AT_ONCE, alias_table, drawn_range, heads


class Constant:
    """Words of all the same bits, but for the last of those that choose a side."""

    def __init__(self, word: int, *, side: int) -> None:
        self.word, self.side = word, side

    def words(self, count: int) -> torch.Tensor:
        return torch.tensor([self.word] * (count - 1) + [self.side])


@pytest.mark.parametrize("coins", [1000, 1001, 12_484, 721_196])
def test_a_draw_reaches_the_ends_and_no_further(coins: int) -> None:
    low, high = drawn_range(coins)
    assert (low, high) == (
        sampling._further(coins, Constant(-1, side=0)),
        sampling._further(coins, Constant(-1, side=1)),
    )
    table = alias_table(coins)
    assert low <= table.first
    assert table.first + table.further - 1 <= high


@pytest.mark.parametrize("coins", [0, 1, 7, 256, 300, 12_484, COINS_AT_ONCE + 300])
def test_draws_lie_in_the_range(coins: int) -> None:
    low, high = drawn_range(coins)
    drawn = heads(coins, 2_000)
    assert low <= int(drawn.min())
    assert int(drawn.max()) <= high
    assert low + high == coins
