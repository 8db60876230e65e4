"""Aggregators of secure sums, and of verified sums, which contain only clients whose range proofs hold.

    envelope = HPKE to the aggregator of   signer (32) ‖ signature (64) ‖ secret

HPKE is as for a mixer's envelopes. An envelope is bound to the terms of the round and to a digest of the
share that the same client sent to the server, which passes the digest on beside the envelope. So a secret
counts only together with its share, and only if client and aggregator were told the same about the round.
In a secure sum the secret is a seed. In a verified sum, where in Prio3's words the server is the leader, and
the aggregators are the helpers, a client sends

    to the server                   nonce ‖ public share ‖ leader's input share
    sealed to each aggregator       nonce ‖ public share ‖ helper's input share, which is two seeds

An aggregator takes the nonce and the public share from the client and never from the server, which could
choose a public share to learn linear functions of a client's counts. It answers about each client only once.
One answer reveals nothing under any verification key; answers under two keys could. This is why the server
may draw the key after all reports have arrived.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.database import Database, StrPath
from shuffle_plugins.secure_aggregation.prio3.field import FieldVector
from shuffle_plugins.secure_aggregation.prio3.prio3 import (
    NONCE_SIZE,
    SEED_SIZE,
    Prio3SumVecWithMultiproof,
    VerificationError,
    VerifyState,
)
from shuffle_plugins.secure_aggregation.sharing import (
    SEED_BYTES,
    CheckFailed,
    Expansion,
    Residues,
    SumTerms,
    windowed,
)
from shuffle_plugins.shuffler import keys
from shuffle_plugins.shuffler.keys import SealingKey, SigningKey
from shuffle_plugins.shuffler.service import BatchService, encoded_number, positions, statement
from shuffle_plugins.shuffler.shuffler import TOKEN_BYTES, BatchRefused, Refusal, ShuffleError

COMMITMENT_BYTES = 32
"""Bytes of a share's digest."""

_TO_AGGREGATOR = b"shuffle-plugins/1 to the aggregator"


def sealed_seed_size(size: int = SEED_BYTES) -> int:
    """Bytes of an envelope around a secret of ``size`` bytes."""
    return keys.SEAL_BYTES + keys.SIGNER_BYTES + size


def commitment(share: bytes) -> bytes:
    """The digest of a share, 32 bytes, to which the client's envelopes are bound."""
    return hashlib.sha256(b"shuffle-plugins/1 share" + share).digest()


def seal_seed(
    seed: bytes, *, terms: SumTerms, share: bytes, aggregator_key: bytes, signing_key: SigningKey
) -> bytes:
    """Seal a client's seed, or what else all clients send alike, for one aggregator.

    Args:
        terms: the round, as the server told the client.
        share: the bytes that the same client sends to the server.
        aggregator_key: the aggregator's public key, as pinned by the client; never one that the server sent.
    """
    if aggregator_key not in terms.aggregators:
        raise ShuffleError("a seed is sealed to one of the aggregators that the terms name")
    info = _TO_AGGREGATOR + terms.digest() + commitment(share)
    return keys.signed_to(aggregator_key, seed, signing_key=signing_key, info=info)


class Sealed(NamedTuple):
    """What the server passes on to an aggregator about one client: its share's digest, and an envelope."""

    commitment: bytes
    envelope: bytes


def open_seed(
    sealed: Sealed, *, terms: SumTerms, private_key: SealingKey, enrolled: frozenset[bytes]
) -> tuple[bytes, bytes]:
    """The public signing key of one of the ``enrolled``, and the seed that it sealed to an aggregator.

    Raises:
        BatchRefused: UNREADABLE if it was altered, sealed to another key or for another round, or belongs to
            another share; UNKNOWN_SIGNER if no enrolled client signed it.
    """
    info = _TO_AGGREGATOR + terms.digest() + sealed.commitment
    return keys.signed_by(sealed.envelope, private_key, enrolled=enrolled, info=info)


def aggregation_digest(
    *,
    step: str,
    terms: SumTerms,
    minimum: int,
    commitments: Sequence[bytes],
    envelopes: Sequence[bytes],
    further: Sequence[bytes] = (),
) -> bytes:
    """Digest of a request, 32 bytes: of what is to be done with the envelopes, and of their order."""
    kind = b"shuffle-plugins/1 aggregator request"
    inputs = [statement(kind, *parts) for parts in (commitments, envelopes)]
    asked = (step.encode(), terms.digest(), encoded_number(minimum))
    return statement(kind, *asked, *inputs, *further)


def answer_statement(
    *, request: bytes, rejected: Mapping[int, Refusal], given: Sequence[bytes] = ()
) -> bytes:
    """An aggregator's statement of what it gives: its sum, or a verifier share of each good envelope.

    The request says which of them it is, or that envelopes were only to be checked.
    """
    return statement(b"shuffle-plugins/1 aggregator answer", request, *positions(rejected), *given)


@dataclass(frozen=True, slots=True)
class Expanded:
    """All that an aggregator answers about a round: the total of the expansions of so many seeds.

    ``rejected`` is why envelopes were dropped, by their positions.
    """

    total: Residues
    added: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


MOST_SERIES = 8
"""Series of which an aggregator keeps sums, those used last: some federations may share it, and none can fill
its disk."""


class KeptSums(Database):
    """An aggregator's shares of the sums of data that later windows need: of each series the last b − 1.

    They are uniform numbers. If the file is lost, no window is given out that was given out before.
    """

    WHAT = "file of kept sums"
    APPLICATION_ID = 0x53504B53
    ERROR = ShuffleError
    SCHEMA = (
        "CREATE TABLE series (id BLOB PRIMARY KEY, pinned BLOB NOT NULL, next INTEGER NOT NULL, "
        "used INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE sums (series BLOB NOT NULL REFERENCES series ON DELETE CASCADE, "
        "place INTEGER NOT NULL, share BLOB NOT NULL, PRIMARY KEY (series, place))",
    )

    def check(self, terms: SumTerms) -> None:
        """BatchRefused (NOT_IN_SERIES) if the terms' window is not the next of its series, alike in all else.

        Window 0 begins a series. With other coefficients, parties or coins, or a smaller promise, a window
        would show data otherwise than their clients were told.
        """
        with self.reading() as connection:
            self._check(connection, terms)

    def advance(self, terms: SumTerms, share: bytes) -> list[bytes]:
        """Keep a share of the sum of a window's data, and return those before it, the newest first.

        It is on disk when this returns, and the same window is never the next one again.
        """
        window = terms.window
        assert window is not None
        series, index = window.series, window.index
        with self.writing() as connection:
            self._check(connection, terms)
            connection.execute(
                "INSERT INTO series VALUES (?, ?, ?, (SELECT coalesce(max(used), 0) + 1 FROM series)) "
                "ON CONFLICT DO UPDATE SET next = excluded.next, used = excluded.used",
                (series, terms.pinned(), index + 1),
            )
            kept = connection.execute(
                "SELECT share FROM sums WHERE series = ? ORDER BY place DESC", (series,)
            ).fetchall()
            connection.execute("INSERT INTO sums VALUES (?, ?, ?)", (series, index, share))
            connection.execute(
                "DELETE FROM sums WHERE series = ? AND place <= ?",
                (series, index + 1 - len(window.coefficients)),
            )
            connection.execute(
                "DELETE FROM series WHERE id NOT IN (SELECT id FROM series ORDER BY used DESC LIMIT ?)",
                (MOST_SERIES,),
            )
        return [share for (share,) in kept]

    def _check(self, connection: Any, terms: SumTerms) -> None:
        assert terms.window is not None
        found = connection.execute(
            "SELECT pinned, next FROM series WHERE id = ?", (terms.window.series,)
        ).fetchone()
        if (found or (terms.pinned(), 0)) != (terms.pinned(), terms.window.index):
            raise BatchRefused(Refusal.NOT_IN_SERIES)


# -- verified sums -----------------------------------------------------------------------------------------

_VERIFIED = b"shuffle-plugins/1 verified sum, checked"
_Client = TypeVar("_Client", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class VerifiedTerms(SumTerms):
    """The terms of one round of a verified sum: clients prove that their counts are from 0 to ``largest``."""

    largest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("largest", self.largest, at_most=(1 << self.layout.bits) - 1)
        checks.whole("aggregators of a verified sum", len(self.aggregators), at_most=254)

    @override
    def digest(self) -> bytes:
        label = b"shuffle-plugins/1 verified sum"
        return hashlib.sha256(label + super().digest() + self.largest.to_bytes(8, "little")).digest()

    @property
    def prio3(self) -> Prio3SumVecWithMultiproof:
        """Prio3 for vectors of this length, this bound and this number of parties."""
        return _prio3(self.layout.entries, self.largest, 1 + len(self.aggregators))

    def windowed(self, total: FieldVector, earlier: Iterable[FieldVector]) -> FieldVector:
        """A share of the window, from one of its clients' data and coins, and those of earlier data."""
        assert self.window is not None
        data, window = np.split(total, 2)
        field = self.prio3.field
        for coefficient, each in zip(self.window.coefficients, [data, *earlier], strict=False):
            factor = field.from_words(np.full(len(each), coefficient))
            window = field.add(window, field.multiply(each, factor))
        return window

    @property
    @override
    def share_bytes(self) -> int:
        return NONCE_SIZE + self.prio3.public_share_size + self.prio3.input_share_size(0)

    @property
    @override
    def secret_bytes(self) -> int:
        return NONCE_SIZE + self.prio3.public_share_size + self.prio3.input_share_size(1)

    def started(self, secret: bytes, *, aggregator: int, verify_key: bytes) -> tuple[VerifyState, bytes]:
        """Begin to verify a client's proof: return the state that this party keeps, and its answer.

        The answer is a verifier share, and the seed of the proof's joint randomness: a client may send
        different public shares to different parties, which the server has to notice before it asks for a sum,
        or such a client would make an aggregator refuse the sum of all.

        ``aggregator`` is 0 for the server, and 1 + its position for an aggregator. A VerificationError if
        these bytes cannot come from a client that follows the protocol.
        """
        state, share = self.prio3.verify_init(
            verify_key=verify_key, **self._parts(secret), aggregator=aggregator
        )
        return state, share + state.joint_randomness_seed

    def kept(self, secret: bytes, *, aggregator: int) -> VerifyState:
        """Compute the state of :meth:`started` again, from what the client sent to this party."""
        return self.prio3.verify_state(**self._parts(secret), aggregator=aggregator)

    def _parts(self, secret: bytes) -> dict[str, bytes]:
        public_end = NONCE_SIZE + self.prio3.public_share_size
        return {
            "context": self.digest(),
            "nonce": secret[:NONCE_SIZE],
            "public_share": secret[NONCE_SIZE:public_end],
            "input_share": secret[public_end:],
        }


class ProvenShares(NamedTuple):
    """What a client sends to the server, and what it seals to each aggregator, with a range proof."""

    share: bytes
    secrets: tuple[bytes, ...]


def share_with_proof(counts: NDArray[np.int64], *, terms: VerifiedTerms) -> ProvenShares:
    """Split a client's counts, (layout.size,), with a proof that each is from 0 to ``terms.largest``."""
    report = terms.prio3.shard(counts, context=terms.digest())
    public = report.nonce + report.public_share
    leader, *helpers = report.input_shares
    return ProvenShares(public + leader, tuple(public + helper for helper in helpers))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of :meth:`VerifiedTerms.started`, and why envelopes were dropped, by their positions."""

    verifier_shares: Mapping[int, bytes]
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


def _refuse_proofs(terms: SumTerms) -> None:
    if isinstance(terms, VerifiedTerms):
        raise ShuffleError("the clients of this round prove their counts: call verify, then add_verified")


class Aggregator(BatchService):
    """Adds up the expansions of the seeds that a round's clients sealed to it.

    It gives out one sum per round: the difference of two sums could be one client's expansion, and with it
    the server could open that client's share. A bad envelope is dropped without the others, and the server
    is told its position. Where there are several aggregators, all must add up the same clients: the server
    first asks each which envelopes are good (:meth:`check`, as often as it likes), and then for the sum of
    those that all found good (``exact=True``).

    In a verified sum it first answers about the proofs of all clients, once (:meth:`verify`), and then gives
    out the sum of those whose proofs hold (:meth:`add_verified`).

    Where the terms name a window it gives out its share of that, and never of the round's own sum, which it
    keeps for the next windows (:class:`KeptSums`).

    Args:
        key, enrolled, minimum, state: as of :class:`BatchService`.
        windows: the file of kept sums; by default beside ``state``.
    """

    role = "aggregator"

    def __init__(self, *, state: StrPath, windows: StrPath | None = None, **service: Any) -> None:
        super().__init__(state=Path(state), **service)
        self.kept_sums = Path(f"{state}.windows" if windows is None else windows)

    def check(self, sealed: Iterable[Sealed], *, terms: SumTerms) -> dict[int, Refusal]:
        """Why each bad envelope of a round is bad, by its position; the round is not spent by this.

        BatchRefused (NOT_IN_SERIES) if the round's window is not the next one of its series.
        """
        _refuse_proofs(terms)
        self._check_window(terms)
        rejected: dict[int, Refusal] = {}
        for _ in self._opened(sealed, terms=terms, rejected=rejected, size=SEED_BYTES):
            pass
        return rejected

    def add_up(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, minimum: int = 2, exact: bool = False
    ) -> Expanded:
        """Add up the expansions of a round's seeds. First the round is recorded on disk as spent.

        Args:
            sealed: one for each client whose share the server has.
            minimum: fewest clients that the server wants in the sum. The largest of this, of what the clients
                were promised (``terms.context.minimum``), and of the aggregator's own minimum applies.
            exact: whether to refuse the whole batch if a single envelope is bad, instead of leaving it out.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good envelopes; NOT_AGREED for
                a bad envelope with ``exact``; NOT_IN_SERIES for a window that is not the next one.
        """
        _refuse_proofs(terms)
        required = self._required(terms, minimum)
        self.spent.spend(terms.context.token)
        expansion, rejected, added = Expansion(terms.layout), dict[int, Refusal](), 0
        for _, seed in self._opened(sealed, terms=terms, rejected=rejected, size=SEED_BYTES):
            expansion.add(seed)
            added += 1
        if exact and rejected:
            raise BatchRefused(Refusal.NOT_AGREED, rejected)
        if added < required:
            raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        total = expansion.total
        if terms.window is not None:
            data, coins = total.split()
            kept = self._next_window(terms, data.to_words())
            earlier = (Residues.from_words(each, layout=data.layout) for each in kept)
            total = windowed(chain([data], earlier), coins, coefficients=terms.window.coefficients)
        return Expanded(total, added, rejected)

    def _check_window(self, terms: SumTerms) -> None:
        if terms.window is not None:
            with KeptSums(self.kept_sums) as kept:
                kept.check(terms)

    def _next_window(self, terms: SumTerms, data: bytes) -> list[bytes]:
        """Record that the terms' window is opened; the kept sums that it is made of beside ``data``.

        The window is also spent as a token, in case the file of kept sums is an older one put back.
        """
        assert terms.window is not None
        with KeptSums(self.kept_sums) as kept:
            earlier = kept.advance(terms, data)
        place = terms.window.series + terms.window.index.to_bytes(8, "little")
        self.spent.spend(_further_token(b"shuffle-plugins/1 window, opened", place))
        return earlier

    def _opened(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, rejected: dict[int, Refusal], size: int
    ) -> Iterator[tuple[int, bytes]]:
        """The position of each good envelope, and the secret of ``size`` bytes in it."""
        if self.public_key.sealing not in terms.aggregators:
            raise ShuffleError("the server asks for a sum among whose aggregators this one is not")
        wanted, private_key, enrolled = sealed_seed_size(size), self._key.sealing, self._enrolled

        def opened(one: Sealed) -> tuple[bytes, bytes]:
            if len(one.envelope) != wanted:
                raise BatchRefused(Refusal.WRONG_SIZE)
            return open_seed(one, terms=terms, private_key=private_key, enrolled=enrolled)

        return self._good(sealed, opened, rejected)

    def _required(self, terms: SumTerms, minimum: int) -> int:
        return max(self.minimum, checks.whole("minimum", minimum, at_least=2), terms.context.minimum)

    def verify(
        self, sealed: Iterable[Sealed], *, terms: VerifiedTerms, verify_key: bytes, minimum: int = 2
    ) -> Answers:
        """Answer about the proofs of a round's clients. First the round is recorded on disk as spent.

        Args:
            verify_key: 32 random bytes that the server drew, and that no client knows.
            sealed, minimum: as in :meth:`Aggregator.add_up`.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good envelopes; NOT_IN_SERIES
                for a window that is not the next one.
        """
        required = self._required(terms, minimum)
        self._check_window(terms)
        self.spent.spend(terms.context.token)
        answers, rejected = dict[int, bytes](), dict[int, Refusal]()
        for position, secret in self._opened(sealed, terms=terms, rejected=rejected, size=terms.secret_bytes):
            try:
                _, answers[position] = terms.started(
                    secret, aggregator=self._number(terms), verify_key=verify_key
                )
            except VerificationError:
                rejected[position] = Refusal.PROOF_REFUSED
        if len(answers) < required:
            raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        self.spent.spend(_further_token(_VERIFIED, terms.digest()))
        return Answers(answers, rejected)

    def add_verified(
        self, decided: Iterable[tuple[Sealed, bytes]], *, terms: VerifiedTerms, minimum: int = 2
    ) -> bytes:
        """Add up this aggregator's shares of the clients whose proofs hold; return the sum, encoded.

        ``decided`` are each of these clients' sealed envelope and what :meth:`RoundVerifier.decide` returned.

        Raises:
            BatchRefused: REPLAYED if a sum of this round was asked for before; UNDER_MINIMUM for too few
                clients; NOT_AGREED if an envelope is not good, or its message is of another proof (whether
                a proof holds only the server can tell, which has all answers); NOT_IN_SERIES for a window
                that is not the next one.
            ShuffleError: if :meth:`verify` has not answered about a round of these terms.
        """
        if _further_token(_VERIFIED, terms.digest()) not in self.spent:
            raise ShuffleError("this aggregator has checked no proof of the round: call verify first")
        self.spent.spend(_further_token(b"shuffle-plugins/1 verified sum, added up", terms.context.token))
        pairs, rejected = list(decided), dict[int, Refusal]()
        messages = [message for _, message in pairs]
        total, added, prio3 = terms.prio3.agg_init(), 0, terms.prio3
        opened = self._opened(
            (sealed for sealed, _ in pairs), terms=terms, rejected=rejected, size=terms.secret_bytes
        )
        for position, secret in opened:
            try:
                state = terms.kept(secret, aggregator=self._number(terms))
                total = prio3.agg_update(total, prio3.verify_next(state, messages[position]))
            except VerificationError:
                rejected[position] = Refusal.PROOF_REFUSED
                continue
            added += 1
        if rejected:
            raise BatchRefused(Refusal.NOT_AGREED, rejected)
        if added < self._required(terms, minimum):
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        if terms.window is not None:
            data, _ = np.split(total, 2)
            kept = self._next_window(terms, prio3.field.encode(data))
            earlier = [prio3.field.decode(each, count=len(data)) for each in kept]
            total = terms.windowed(total, earlier)
        return prio3.encode_agg_share(total)

    def _number(self, terms: VerifiedTerms) -> int:
        return 1 + terms.aggregators.index(self.public_key.sealing)


class RoundVerifier(Generic[_Client]):
    """The server's part of a verified sum, for one round. No client may learn its ``verify_key``."""

    def __init__(self, terms: VerifiedTerms) -> None:
        self.verify_key = secrets.token_bytes(SEED_SIZE)
        self._terms = terms
        self._started: dict[_Client, tuple[VerifyState, bytes]] = {}
        self._total = terms.prio3.agg_init()
        self._added = 0

    def start(self, client: _Client, share: bytes) -> None:
        """Begin to verify a client's share."""
        self._started[client] = self._terms.started(share, aggregator=0, verify_key=self.verify_key)

    def decide(self, client: _Client, verifier_shares: Sequence[bytes]) -> bytes:
        """Add a client's share to the server's sum if its proof holds; the message for the aggregators.

        ``verifier_shares`` are each aggregator's answer about this client, in the order of the terms. After a
        VerificationError the client is left out of the sum.
        """
        state, own = self._started.pop(client)
        prio3 = self._terms.prio3
        answers = [own, *verifier_shares]
        message = prio3.verifier_shares_to_message(
            [answer[:-SEED_SIZE] for answer in answers], context=self._terms.digest()
        )
        if any(answer[-SEED_SIZE:] != message for answer in answers):
            raise VerificationError("a report is refused: its parties were sent different public shares")
        self._total = prio3.agg_update(self._total, prio3.verify_next(state, message))
        self._added += 1
        return message

    @property
    def data(self) -> FieldVector:
        """The server's share of the sum of the clients' data, which later windows need."""
        return np.split(self._total, 2)[0]

    def total(self, sums: Sequence[bytes], *, earlier: Iterable[FieldVector] = ()) -> NDArray[np.int64]:
        """The sum of the counts of all clients whose proofs hold, int64 (size,), or the round's window.

        :class:`CheckFailed` if it does not fit together: then an aggregator did not follow the protocol.

        ``earlier`` is :attr:`data` of the series' last rounds, the newest first.
        """
        prio3 = self._terms.prio3
        try:
            if self._terms.window is not None:
                total, field = self._terms.windowed(self._total, earlier), prio3.field
                for each in sums:
                    total = field.add(total, field.decode(each, count=len(total)))
                window = field.to_words(total)
                if window.max() >> self._terms.layout.bits:
                    raise ValueError("a number is larger than those of any window")
                return window
            shares = [prio3.encode_agg_share(self._total), *sums]
            return prio3.unshard(shares, num_measurements=self._added)
        except ValueError as error:
            raise CheckFailed from error


def _further_token(label: bytes, place: bytes) -> bytes:
    """What is spent for a step of a round that is not its first."""
    return hashlib.sha256(label + place).digest()[:TOKEN_BYTES]


@lru_cache(maxsize=16)
def _prio3(size: int, largest: int, shares: int) -> Prio3SumVecWithMultiproof:
    return Prio3SumVecWithMultiproof(length=size, max_measurement=largest, shares=shares)
