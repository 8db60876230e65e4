"""Secure sums of which only clients with a valid range proof are part.

The server is the leader of Prio3, the aggregators are its helpers. A round has two steps. In the first every
aggregator answers the server's query about each client's proof, and the server decides which proofs hold. In
the second every aggregator gives out one sum, of its shares of the clients whose proofs hold.

    server's share of a client      nonce ‖ public share ‖ leader's input share
    sealed to an aggregator         nonce ‖ public share ‖ helper's input share, which is two seeds

An aggregator takes nonce and public share from the client and never from the server: with a public share of
its own, a server could learn linear functions of a client's counts from the aggregator's answer. And it
answers about a client once: answers to queries with two keys would say something about the counts. One
answer says nothing, whatever the key, so the server may draw it when all reports are in.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation.aggregator import Aggregator, Sealed
from shuffle_plugins.secure_aggregation.prio3 import (
    NONCE_SIZE,
    SEED_SIZE,
    VERIFY_KEY_SIZE,
    Prio3SumVecWithMultiproof,
    VerificationError,
    VerifyState,
)
from shuffle_plugins.secure_aggregation.sharing import CheckFailed
from shuffle_plugins.secure_aggregation.terms import SumTerms
from shuffle_plugins.shuffler import TOKEN_BYTES, BatchRefused, Refusal

_Client = TypeVar("_Client", bound=Hashable)

_TERMS = b"shuffle-plugins/1 verified sum"
_MOST_AGGREGATORS = 254  # beside the server; Prio3 has up to 255 shares
_SECOND_STEP = b"shuffle-plugins/1 verified sum, added up"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTerms(SumTerms):
    """What all parties of a verified sum must know alike.

    Attributes:
        largest: the largest count that a client may have in any entry; the smallest is 0.

    Raises:
        ValueError: if the largest count is less than 1, or does not fit in the layout, or there are more
            aggregators than Prio3 has room for.
    """

    largest: int

    def __post_init__(self) -> None:
        SumTerms.__post_init__(self)
        checks.whole("largest", self.largest, at_most=(1 << self.layout.bits) - 1)
        checks.whole("aggregators of a verified sum", len(self.aggregators), at_most=_MOST_AGGREGATORS)

    def digest(self) -> bytes:
        """32 bytes that differ wherever two terms differ."""
        return hashlib.sha256(_TERMS + SumTerms.digest(self) + self.largest.to_bytes(8, "little")).digest()

    @property
    def prio3(self) -> Prio3SumVecWithMultiproof:
        """The proof system of these terms."""
        return _prio3(self.layout.size, self.largest, 1 + len(self.aggregators))

    @property
    def share_bytes(self) -> int:
        """Bytes of what the server gets of a client."""
        return NONCE_SIZE + self.prio3.public_share_size + self.prio3.input_share_size(0)

    @property
    def secret_bytes(self) -> int:
        """Bytes of what is sealed to an aggregator."""
        return NONCE_SIZE + self.prio3.public_share_size + self.prio3.input_share_size(1)

    def started(self, secret: bytes, *, aggregator: int, verify_key: bytes) -> tuple[VerifyState, bytes]:
        """What one party keeps of a client, and its answer: a verifier share, and the seed of its joint
        randomness.

        Everybody who has the public share and the verifier shares can compute that seed. It is in the answer
        because a client may send parties different public shares: the server has to find that out before it
        asks for a sum, or such a client would make an aggregator refuse the sum of all.

        Args:
            secret: what the party got of the client.
            aggregator: 0 for the server, and 1 + its position for an aggregator.
            verify_key: the round's.

        Raises:
            VerificationError: if the bytes are nothing that a client may send.
        """
        state, share = self.prio3.verify_init(
            verify_key=verify_key, **self._parts(secret), aggregator=aggregator
        )
        return state, share + state.joint_randomness_seed

    def kept(self, secret: bytes, *, aggregator: int) -> VerifyState:
        """What :meth:`started` returned to keep."""
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
    """One client's counts, split, with a proof.

    Attributes:
        share: what the server gets.
        secrets: what is sealed to each aggregator, in the terms' order.
    """

    share: bytes
    secrets: tuple[bytes, ...]


def share_with_proof(counts: NDArray[np.int64], *, terms: VerifiedTerms) -> ProvenShares:
    """Split a client's counts between a server and aggregators, and prove that each is within bounds.

    Args:
        counts: (terms.layout.size,), whole numbers from 0 to ``terms.largest``.
        terms: the round, as the server told the client.

    Raises:
        ValueError: if the counts are not that.
    """
    report = terms.prio3.shard(counts, context=terms.digest())
    public = report.nonce + report.public_share
    leader, *helpers = report.input_shares
    return ProvenShares(public + leader, tuple(public + helper for helper in helpers))


@dataclass(frozen=True, slots=True)
class Answers:
    """What an aggregator answers about the proofs of a round.

    Attributes:
        verifier_shares: by position among all envelopes, of the good ones, what
            :meth:`VerifiedTerms.started` returned as the answer.
        rejected: why envelopes were dropped, by their positions.
    """

    verifier_shares: Mapping[int, bytes]
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


class VerifyingAggregator(Aggregator):
    """An aggregator of verified sums; the arguments are those of :class:`Aggregator`.

    It answers about the proofs of a round once, and gives out one sum of its shares once.
    """

    def verify(
        self, sealed: Iterable[Sealed], *, terms: VerifiedTerms, verify_key: bytes, minimum: int = 2
    ) -> Answers:
        """Answer about the proofs of a round's clients. The round is spent on disk before anything else.

        Args:
            sealed: of each client whose share the server has.
            terms: the round as the server describes it.
            verify_key: 32 random bytes that the server drew, and that no client knows.
            minimum: fewest clients that the server wants in the sum; the largest minimum holds, as in
                :meth:`Aggregator.add_up`.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good envelopes.
            ShuffleError: if the state file cannot be written.
        """
        self._spent.spend(terms.context.token)
        answers, rejected = dict[int, bytes](), dict[int, Refusal]()
        for position, secret in self._opened(sealed, terms=terms, rejected=rejected, size=terms.secret_bytes):
            try:
                _, answers[position] = terms.started(
                    secret, aggregator=self._number(terms), verify_key=verify_key
                )
            except VerificationError:
                rejected[position] = Refusal.PROOF_REFUSED
        if len(answers) < self._required(terms, minimum):
            raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        return Answers(answers, rejected)

    def add_verified(
        self, decided: Iterable[tuple[Sealed, bytes]], *, terms: VerifiedTerms, minimum: int = 2
    ) -> bytes:
        """The sum of this aggregator's shares of the clients whose proofs hold, encoded.

        Args:
            decided: of each of these clients, what the server passes on of it, and its verifier message.
            terms: the round as the server describes it.
            minimum: as in :meth:`verify`.

        Raises:
            BatchRefused: REPLAYED if a sum of this round was asked for before; UNDER_MINIMUM for too few
                clients; NOT_AGREED if an envelope is not good, or a proof does not hold.
            ShuffleError: if the state file cannot be written.
        """
        token = hashlib.sha256(_SECOND_STEP + terms.context.token).digest()[:TOKEN_BYTES]
        self._spent.spend(token)
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
        return prio3.encode_agg_share(total)

    def _number(self, terms: VerifiedTerms) -> int:
        return 1 + terms.aggregators.index(self.public_key.sealing)


class RoundVerifier(Generic[_Client]):
    """The server's part of a verified sum, for one round.

    Args:
        terms: the round.

    Attributes:
        verify_key: 32 random bytes for the aggregators, which no client may learn.
    """

    def __init__(self, terms: VerifiedTerms) -> None:
        self.verify_key = secrets.token_bytes(VERIFY_KEY_SIZE)
        self._terms = terms
        self._started: dict[_Client, tuple[VerifyState, bytes]] = {}
        self._total = terms.prio3.agg_init()
        self._added = 0

    def start(self, client: _Client, share: bytes) -> None:
        """Begin to verify a client's share.

        Raises:
            VerificationError: if the bytes are nothing that a client may send.
        """
        self._started[client] = self._terms.started(share, aggregator=0, verify_key=self.verify_key)

    def decide(self, client: _Client, verifier_shares: Sequence[bytes]) -> bytes:
        """Decide whether a client's proof holds, and if so add its share to the server's sum.

        Args:
            client: one that :meth:`start` took.
            verifier_shares: of each aggregator, in the terms' order.

        Returns:
            The verifier message for the aggregators.

        Raises:
            VerificationError: if the proof does not hold; the client is no part of the sum.
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

    def total(self, sums: Sequence[bytes]) -> NDArray[np.int64]:
        """The sum of the counts of the clients whose proofs held, int64 (size,).

        Args:
            sums: of each aggregator, what :meth:`VerifyingAggregator.add_verified` gave out.

        Raises:
            CheckFailed: if the sums do not fit together. Then an aggregator did not follow the protocol.
        """
        prio3 = self._terms.prio3
        try:
            shares = [prio3.encode_agg_share(self._total), *sums]
            return prio3.unshard(shares, num_measurements=self._added)
        except ValueError as error:
            raise CheckFailed from error


@lru_cache(maxsize=16)
def _prio3(size: int, largest: int, shares: int) -> Prio3SumVecWithMultiproof:
    return Prio3SumVecWithMultiproof(length=size, max_measurement=largest, shares=shares)
