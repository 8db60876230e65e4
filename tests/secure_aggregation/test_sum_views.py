"""What each coalition sees of a tiny sum, over all seeds: the same law for inputs of equal sum."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
import pytest

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation import ResidueLayout, share, sharing

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

    def update(self, zeros: bytes) -> bytes:
        assert len(zeros) == 17
        return bytes([self._seed[1], *bytes(15), self._seed[0]])


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
        law(
            counts,
            lambda seeds, shares: (*shares, *seeds[0], *seeds[1]),
            aggregators=2,
        )
        for counts in EQUAL
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
