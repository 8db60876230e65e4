"""What each coalition sees of a tiny sum, over all seeds: the same law for inputs of equal sum."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
import pytest

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation import ResidueLayout, Residues, share, sharing

CLIENTS, BITS = 3, 2
WORDS = range(1 << BITS)
LAYOUT = ResidueLayout(size=1, bits=BITS)
EQUAL = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
"""Counts of three clients; the largest possible sum, 3, just fits in two bits."""

View = Callable[[list[list[tuple[int, int]]], list[tuple[int, int]]], tuple[object, ...]]
"""What a coalition sees: of seeds[aggregator][client] and shares[client]; each a count and a check, mod 4."""


class TinyStream:
    """A keystream of a seed: the check words, then the count, each two bits in a byte of the seed."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def encryptor(self, block: int) -> "TinyStream":
        assert block == 0
        return self

    def update_into(self, zeros: memoryview, stream: np.ndarray) -> None:
        assert len(zeros) in (16, 1)  # two check words, and then a count
        stream[: len(zeros)] = 0
        stream[0] = self._seed[1 if len(zeros) == 16 else 0]


@pytest.fixture(autouse=True)
def tiny_keystream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = sharing.Keystream

    def tiny(seed: bytes, nonce: int = 0) -> TinyStream | Keystream:
        return stream(seed, nonce=nonce) if nonce else TinyStream(seed)  # check words have other nonces

    monkeypatch.setattr(sharing, "Keystream", tiny)


def shared(count: int, masks: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """A client's share by the library's own code: its count and first check word, mod 4."""
    seeds = [bytes([*mask, *bytes(30)]) for mask in masks]
    found = share(
        np.array([count]), layout=LAYOUT, aggregators=len(seeds), seeds=seeds, check_seed=bytes(32)
    ).share
    return int(found.reduced[0]), int(found.checks[0]) % 4


def summed(seeds: Iterable[tuple[int, int]]) -> tuple[int, int]:
    counts, checks = zip(*seeds, strict=True)
    return sum(counts) % 4, sum(checks) % 4


def law(counts: tuple[int, ...], view: View, *, aggregators: int, checked: bool = False) -> Counter[object]:
    """How often each view comes up, over all seeds of all clients, with or without the check words."""
    masks = list(product(WORDS, WORDS if checked else [0]))
    each = {
        (count, drawn): shared(count, drawn) if checked else (shared(count, drawn)[0], 0)
        for count in set(counts)
        for drawn in product(masks, repeat=aggregators)
    }
    found: Counter[object] = Counter()
    for drawn in product(product(masks, repeat=aggregators), repeat=CLIENTS):
        shares = [each[count, mine] for count, mine in zip(counts, drawn, strict=True)]
        found[view([list(column) for column in zip(*drawn, strict=True)], shares)] += 1
    return found


COALITIONS: dict[str, tuple[int, View]] = {
    "the server, one aggregator": (1, lambda seeds, shares: (*shares, summed(seeds[0]))),
    "the aggregator": (1, lambda seeds, shares: (*seeds[0],)),
    "the server": (2, lambda seeds, shares: (*shares, summed(seeds[0]), summed(seeds[1]))),
    "the first aggregator": (2, lambda seeds, shares: (*seeds[0],)),
    "both aggregators": (2, lambda seeds, shares: (*seeds[0], *seeds[1])),
    "server and first aggregator": (2, lambda seeds, shares: (*shares, *seeds[0], summed(seeds[1]))),
    "server and second aggregator": (2, lambda seeds, shares: (*shares, *seeds[1], summed(seeds[0]))),
}


@pytest.mark.parametrize("who", COALITIONS)
def test_inputs_of_equal_sum_look_alike_to_every_coalition(who: str) -> None:
    aggregators, view = COALITIONS[who]
    first, *others = (
        law(counts, view, aggregators=aggregators, checked=aggregators == 1) for counts in EQUAL
    )
    assert all(other == first for other in others)
    assert first.total() == 4**6  # with the check words of one aggregator, or without them of two
    more = law((1, 1, 0), view, aggregators=aggregators, checked=aggregators == 1)
    assert (more == first) == (not who.startswith(("the server", "server")))  # the total is all it learns


@pytest.mark.parametrize("who", ["the server", "server and first aggregator"])
def test_a_client_in_the_coalition_learns_no_more_of_the_others(who: str) -> None:
    _, view = COALITIONS[who]

    def with_the_first_client(seeds: list[list[tuple[int, int]]], shares: list[tuple[int, int]]) -> tuple:
        return (*view(seeds, shares), seeds[0][0], seeds[1][0])

    laws = [law(counts, with_the_first_client, aggregators=2) for counts in ((1, 1, 0), (1, 0, 1))]
    assert laws[0] == laws[1]


def test_all_parties_together_see_each_client() -> None:
    """The test can fail: where nobody is honest, the views tell the inputs apart."""
    laws = [
        law(counts, lambda seeds, shares: (*shares, *seeds[0], *seeds[1]), aggregators=2) for counts in EQUAL
    ]
    assert laws[0] != laws[1]


def test_sums_of_different_clients_say_nothing_at_all() -> None:
    """A server that has aggregators add up different sets does not even learn a total."""

    def view(seeds: list[list[tuple[int, int]]], shares: list[tuple[int, int]]) -> tuple:
        return (*shares, summed(seeds[0]), summed(seeds[1][:2]))

    laws = [law(counts, view, aggregators=2) for counts in [*EQUAL, (1, 1, 0), (1, 1, 1)]]
    assert all(found == laws[0] for found in laws)


def test_two_sums_of_one_aggregator_would_show_a_client() -> None:
    """Why each round is added up once: the difference of two sums is one client's expansion."""

    def view(seeds: list[list[tuple[int, int]]], shares: list[tuple[int, int]]) -> tuple:
        return (*shares, summed(seeds[0]), summed(seeds[0][:2]))

    laws = [law(counts, view, aggregators=1) for counts in EQUAL]
    assert laws[0] != laws[2]


# -- windows: two rounds of two clients each, of data and coins, over all masks ------------------------------

CHOICES = 4**8  # of eight masks mod 4 for one aggregator, or of sixteen mod 2 for two
SERIES = [(0, (1, 3)), (1, (1, 3))]
COUNTS = (1, 0, 1, 1, 0, 1, 0, 1)  # data of two clients in round 0, and in round 1; then their coins


def windows_law(
    counts: tuple[int, ...],
    asked: list[tuple[int, tuple[int, ...]]],
    *,
    aggregators: int = 1,
    left_out: bool = False,
) -> np.ndarray:
    """How often each view comes up: all shares, and what honest aggregators give out of their masks.

    ``asked`` are windows, each a round and its coefficients. ``left_out``: the last aggregator is not given
    the first client of round 0.
    """
    base, layout = 4 // aggregators, ResidueLayout(size=CHOICES, bits=2 // aggregators)
    digits = np.arange(CHOICES) // base ** np.arange(8 * aggregators)[:, None] % base
    masks = digits.reshape(aggregators, 2, 2, 2, CHOICES)  # of data or coins, round, client, in every choice
    shares = (np.array(counts).reshape(2, 2, 2, 1) - masks.sum(axis=0)) % base
    seen, given = list(shares.reshape(8, -1)), masks.copy()
    if left_out:
        given[-1, :, 0, 0] = 0

    def residues(values: np.ndarray) -> Residues:
        return Residues(layout, values.astype(layout.dtype), layout.zero().checks)

    for data, coins in given.sum(axis=3):
        for number, coefficients in asked:
            sums = [residues(data[t]) for t in range(number, -1, -1)]
            found = sharing.windowed(sums, residues(coins[number]), coefficients=coefficients)
            seen.append(found.reduced)
    return np.sort(sum(base**place * values.astype(np.int64) for place, values in enumerate(seen)))


def windows_of(counts: tuple[int, ...], modulus: int = 4) -> list[int]:
    data, coins = np.array(counts).reshape(2, 2, 2).sum(axis=2)
    return [(data[0] + coins[0]) % modulus, (data[1] + 3 * data[0] + coins[1]) % modulus]


OTHERS = list(product(range(2), repeat=8))
ALIKE = [counts for counts in OTHERS if windows_of(counts) == windows_of(COUNTS)]


def test_data_and_coins_with_equal_windows_look_alike() -> None:
    first = windows_law(COUNTS, SERIES)
    assert len(ALIKE) > 10
    assert all(np.array_equal(windows_law(counts, SERIES), first) for counts in ALIKE[::3])
    unlike = [counts for counts in OTHERS[::11] if counts not in ALIKE]
    assert not any(np.array_equal(windows_law(counts, SERIES), first) for counts in unlike)


@pytest.mark.parametrize("coefficients", [(1, 1), (1,), (0, 1)])
def test_coins_used_twice_would_show_more_than_windows(coefficients: tuple[int, ...]) -> None:
    """Why a series' coefficients are pinned, and each of its windows is opened once."""
    laws = [windows_law(counts, [*SERIES, (1, coefficients)]) for counts in ALIKE[:12]]
    assert any(not np.array_equal(law, laws[0]) for law in laws)


def test_windows_of_different_clients_say_nothing_of_that_round() -> None:
    """Nor of later ones in which it has a coefficient that is a unit."""
    laws = [windows_law(counts, SERIES, aggregators=2, left_out=True) for counts in OTHERS[::17]]
    assert all(np.array_equal(law, laws[0]) for law in laws)
    agreed = [windows_law(counts, SERIES, aggregators=2) for counts in OTHERS[::17]]
    assert any(not np.array_equal(law, agreed[0]) for law in agreed)
