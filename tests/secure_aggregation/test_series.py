"""Series of windows: what aggregators open of shares, keep and refuse, against plain arithmetic."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sharing_parties import CHECK_SEED, LARGEST, SumParties, round_context

from shuffle_plugins.secure_aggregation import (
    CheckFailed,
    ResidueLayout,
    Residues,
    Sealed,
    SumTerms,
    WindowTerms,
    aggregator,
)
from shuffle_plugins.secure_aggregation.sharing import Shared, reconstruct, windowed
from shuffle_plugins.shuffler import Refusal, ShuffleError

COEFFICIENTS = (8, 0, 3)
WINDOW = WindowTerms(series=bytes(32), index=0, coefficients=COEFFICIENTS, fixed=bytes(32))


@dataclass
class Series(SumParties):
    """Parties of a series of windows, and a server that keeps its shares."""

    coefficients: tuple[int, ...] = COEFFICIENTS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rng = np.random.default_rng(5)
        self.kept: list[Residues] = []
        self.data: list[np.ndarray] = []
        self.rounds = 0

    def terms_of(self, **changes: Any) -> SumTerms:
        highest = LARGEST * (sum(self.coefficients) + 1)
        layout = ResidueLayout.of_sum(size=self.size, largest=highest, clients=self.clients, vectors=2)
        window = replace(WINDOW, coefficients=self.coefficients)
        return super().terms_of(**{"layout": layout, "window": window, **changes})

    def next_terms(self, index: int, *, window: dict[str, Any] | None = None, **changes: Any) -> SumTerms:
        """Terms of a new round."""
        self.rounds += 1
        terms = self.terms_of(
            context=round_context(
                token=self.rounds.to_bytes(16, "big"), fingerprint=self.rounds.to_bytes(32, "big")
            ),
        )
        changed = replace(terms.window, index=index, **(window or {}))
        return replace(terms, window=changed, **changes)

    def send(self, terms: SumTerms, *, clients: int | None = None) -> list[tuple[Shared, list[Sealed]]]:
        """What so many clients send, of new counts."""
        self.counts = self.rng.integers(0, LARGEST + 1, (self.clients, terms.layout.entries))
        return [self.sent(client, terms=terms) for client in range(clients or self.clients)]

    def opened(self, terms: SumTerms, sent: list[tuple[Shared, list[Sealed]]]) -> list[Residues]:
        """The aggregators' shares of a window, each of a process of its own."""
        found = []
        for position in range(self.aggregators):
            mine = [envelopes[position] for _, envelopes in sent]
            assert self.aggregator(position).check(mine, terms=terms) == {}
            found.append(self.aggregator(position).add_up(mine, terms=terms, exact=True).total)
        return found

    def total(
        self, terms: SumTerms, sent: list[tuple[Shared, list[Sealed]]], windows: list[Residues]
    ) -> np.ndarray:
        """What the server reads of a window, and what it should be."""
        own = terms.layout.zero()
        for shared, _ in sent:
            own.add(shared.share)
        data, coins = own.split()
        window = windowed([data, *self.kept], coins, coefficients=self.coefficients)
        self.kept = [data, *self.kept][: len(self.coefficients) - 1]
        return reconstruct([window], windows, layout=terms.opened, check_seed=CHECK_SEED)

    def expected(self, clients: int | None = None) -> np.ndarray:
        data, coins = np.split(self.counts[: clients or self.clients].sum(axis=0), 2)
        self.data.insert(0, data)
        return sum(c * each for c, each in zip(self.coefficients, self.data, strict=False)) + coins

    def open_windows(self, count: int, *, first: int = 0) -> None:
        for index in range(first, first + count):
            terms = self.next_terms(index)
            sent = self.send(terms)
            found = self.total(terms, sent, self.opened(terms, sent))
            assert np.array_equal(found, self.expected())

    def refused(self, terms: SumTerms, *, position: int = 0, clients: int | None = None) -> Refusal:
        """Why an aggregator does not add up a round, in which it keeps nothing."""
        mine = [envelopes[position] for _, envelopes in self.send(terms, clients=clients)]
        before = self.file(position)
        code = refused(self.aggregator(position).add_up, mine, terms=terms)
        assert self.file(position) == before
        if code is Refusal.NOT_IN_SERIES:  # and it says so before anybody is asked to add up
            assert refused(self.aggregator(position).check, mine, terms=terms) is code
        return code

    def replayed(self, terms: SumTerms) -> bool:
        """Whether an aggregator says that it has opened such a window, or answered in the round, before."""
        mine = [envelopes[0] for _, envelopes in self.send(terms)]
        return refused(self.aggregator().add_up, mine, terms=terms) is Refusal.REPLAYED

    def file(self, position: int) -> list[Any]:
        """All that an aggregator keeps of series."""
        path = self.aggregator(position).kept_sums
        if not path.exists():
            return [[], []]
        with sqlite3.connect(path) as connection:
            return [
                sorted(connection.execute(f"SELECT * FROM {table}").fetchall())
                for table in ("series", "sums")
            ]


@pytest.fixture
def series(tmp_path: Path) -> Series:
    return Series(tmp_path)


@pytest.mark.parametrize("coefficients", [(1,), COEFFICIENTS])
@pytest.mark.parametrize("aggregators", [1, 2])
def test_windows_are_those_of_plain_arithmetic(
    tmp_path: Path, aggregators: int, coefficients: tuple[int, ...]
) -> None:
    Series(tmp_path, aggregators=aggregators, coefficients=coefficients).open_windows(6)


OTHERS: dict[str, Callable[[Series], SumTerms]] = {
    "other coefficients": lambda s: s.next_terms(2, window={"coefficients": (8, 0, 2)}),
    "more coefficients": lambda s: s.next_terms(2, window={"coefficients": (8, 0, 3, 1)}),
    "the data alone": lambda s: s.next_terms(2, window={"coefficients": (1,)}),
    "the same window again": lambda s: s.next_terms(1),
    "the first window again": lambda s: s.next_terms(0),
    "a window left out": lambda s: s.next_terms(3),
    "a series that it does not know": lambda s: s.next_terms(2, window={"series": bytes(31) + b"x"}),
    "other coins, or another check seed": lambda s: s.next_terms(2, window={"fixed": bytes(31) + b"x"}),
    "aggregators in another order": lambda s: s.next_terms(2, aggregators=s.terms.aggregators[::-1]),
    "more bits": lambda s: s.next_terms(2, layout=ResidueLayout(s.size, 20, vectors=2)),
    "a larger promise": lambda s: s.next_terms(2, context=round_context(token=b"x" * 16, minimum=3)),
    "another run": lambda s: s.next_terms(2, context=round_context(token=b"x" * 16, run="other")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_hostile_server_gets_no_other_window(series: Series, name: str) -> None:
    """Whatever else clients are told, too, an aggregator gives nothing, and the series goes on."""
    series.open_windows(2)
    assert series.refused(OTHERS[name](series)) is Refusal.NOT_IN_SERIES
    series.open_windows(2, first=2)


def test_the_promised_minimum_cannot_be_lowered_within_a_series(tmp_path: Path) -> None:
    series = Series(tmp_path, minimum=2)
    terms = series.next_terms(0, context=round_context(minimum=5))
    series.opened(terms, series.send(terms))
    assert series.refused(series.next_terms(1)) is Refusal.NOT_IN_SERIES


def test_the_sum_of_one_round_is_not_to_be_had(series: Series) -> None:
    """The envelopes of a window do not open as those of a plain sum, of data, of coins or of both."""
    series.open_windows(1)
    terms = series.next_terms(1)
    mine = [envelopes[0] for _, envelopes in series.send(terms)]
    for layout in (terms.opened, replace(terms.opened, size=2 * series.size)):
        plain = replace(terms, layout=layout, window=None)
        assert set(series.aggregator().check(mine, terms=plain).values()) == {Refusal.UNREADABLE}
        token = layout.size.to_bytes(16, "big")
        other = replace(plain, context=round_context(token=token))
        assert refused(series.aggregator().add_up, mine, terms=other) is Refusal.UNDER_MINIMUM
    with pytest.raises(ShuffleError, match="two"):
        replace(terms, window=None)


def test_too_few_clients_enter_nothing_and_use_no_window(series: Series) -> None:
    series.open_windows(2)
    assert series.refused(series.next_terms(2), clients=2) is Refusal.UNDER_MINIMUM
    series.open_windows(3, first=2)


def test_a_round_is_answered_once(series: Series) -> None:
    terms = series.next_terms(0)
    sent = series.send(terms)
    series.opened(terms, sent)
    for again in (sent, sent[1:]):
        mine = [envelopes[0] for _, envelopes in again]
        assert refused(series.aggregator().add_up, mine, terms=terms) is Refusal.REPLAYED


def test_a_lost_file_ends_its_series_and_no_window_is_opened_again(series: Series) -> None:
    series.open_windows(2)
    series.aggregator().kept_sums.unlink()
    assert series.refused(series.next_terms(2)) is Refusal.NOT_IN_SERIES
    assert series.replayed(series.next_terms(0))  # a new series under an old name


def test_an_older_file_put_back_opens_no_window_twice(series: Series) -> None:
    series.open_windows(2)
    path = series.aggregator().kept_sums
    shutil.copy(path, series.folder / "copy")
    series.open_windows(1, first=2)
    shutil.copy(series.folder / "copy", path)
    assert series.replayed(series.next_terms(2))


def test_few_sums_of_few_series_are_kept(series: Series) -> None:
    series.open_windows(5)
    known, sums = series.file(0)
    assert [(place, len(share)) for _, place, share in sums] == [
        (place, len(series.next_terms(0).opened.zero().to_words())) for place in (3, 4)
    ]
    for number in range(1, aggregator.MOST_SERIES + 1):
        terms = series.next_terms(0, window={"series": number.to_bytes(32, "big")})
        series.opened(terms, series.send(terms))
    known, sums = series.file(0)
    assert len(known) == aggregator.MOST_SERIES == len(sums)
    assert bytes(32) not in {name for name, *_ in known}  # the one that was used longest ago
    assert series.refused(series.next_terms(5)) is Refusal.NOT_IN_SERIES


@pytest.mark.parametrize("change", ["data", "coins", "check word", "an old sum", "left out", "other window"])
def test_a_window_that_is_wrong_does_not_fit_its_check(series: Series, change: str) -> None:
    series.open_windows(2)
    terms = series.next_terms(2)
    sent = series.send(terms)
    windows = series.opened(terms, sent)
    match change:
        case "data":
            sent[0][0].share.counts[1] += 1
        case "coins":
            sent[0][0].share.counts[series.size + 1] += 1
        case "check word":
            sent[0][0].share.checks[2] += np.uint64(1)
        case "an old sum":
            series.kept[1].counts[0] += 1
        case "left out":
            sent = sent[1:]
        case "other window":
            windows[0] = windows[1]
    with pytest.raises(CheckFailed):
        series.total(terms, sent, windows)


def test_nothing_is_given_before_it_is_written_down(series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two writes, an aggregator gave nothing, and opens that window in no other round."""
    series.open_windows(1)
    terms = series.next_terms(1)
    mine = [envelopes[0] for _, envelopes in series.send(terms)]
    one, spend = series.aggregator(), type(series.aggregator().spent).spend

    def killed(self: Any, token: bytes) -> None:
        if token != terms.context.token:
            raise KeyboardInterrupt
        spend(self, token)

    with monkeypatch.context() as patched:
        patched.setattr(type(one.spent), "spend", killed)
        with pytest.raises(KeyboardInterrupt):
            one.add_up(mine, terms=terms)
    assert series.refused(series.next_terms(1)) is Refusal.NOT_IN_SERIES


@pytest.mark.parametrize("coefficients", [(), (0, 1), (1, -1), (1.0,), [1], (1 << 44,), (True,)])
def test_coefficients_that_make_no_window_are_refused(coefficients: Any) -> None:
    with pytest.raises(ShuffleError, match="coefficients"):
        replace(WINDOW, coefficients=coefficients)
