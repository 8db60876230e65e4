"""The aggregator: opens sealed seeds, expands them, and gives out one sum of the expansions per round.

    envelope = HPKE to the aggregator of   signer (32) ‖ signature (64) ‖ seed (32)

HPKE is as for a mixer's envelopes. An envelope is bound to the terms of the round and to a digest of the
share that the same client sent to the server, which passes the digest on beside the envelope. So a seed is
added up only together with its share, and only if client and aggregator were told the same about the round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation.sharing import SEED_BYTES, Expansion, Residues, SumTerms
from shuffle_plugins.shuffler import keys
from shuffle_plugins.shuffler.keys import KEY_BYTES, SealingKey, SigningKey
from shuffle_plugins.shuffler.service import BatchService, Statement, encoded_number, positions, statement
from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, ShuffleError

COMMITMENT_BYTES = 32
"""Bytes of a share's digest."""

_COVER_BYTES = KEY_BYTES + keys.SIGNATURE_BYTES
_TO_AGGREGATOR = b"shuffle-plugins/1 to the aggregator"


def sealed_seed_size(size: int = SEED_BYTES) -> int:
    """Bytes of an envelope around a secret of ``size`` bytes."""
    return keys.SEAL_BYTES + _COVER_BYTES + size


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
    binding = terms.digest() + commitment(share)
    signature = signing_key.sign(_signed(binding, aggregator_key, seed))
    text = keys.public_key_bytes(signing_key) + signature + seed
    return keys.sealed_to(aggregator_key, text, info=_TO_AGGREGATOR + binding)


class SeedOpener:
    """Opens a round's envelopes for one aggregator, of clients with the ``enrolled`` public signing keys."""

    def __init__(self, *, terms: SumTerms, private_key: SealingKey, enrolled: frozenset[bytes]) -> None:
        self._terms = terms
        self._private_key = private_key
        self._key = keys.public_key_bytes(private_key)
        self._enrolled = enrolled
        self._digest = terms.digest()

    def open(self, envelope: bytes, *, commitment: bytes) -> tuple[bytes, bytes]:
        """The client's public signing key, and the seed.

        Raises:
            BatchRefused: UNREADABLE if it was altered, sealed to another key or for another round, or belongs
                to another share; UNKNOWN_SIGNER if no enrolled client signed it.
        """
        binding = self._digest + commitment
        cover = keys.unsealed(envelope, self._private_key, info=_TO_AGGREGATOR + binding)
        signer, signature, seed = cover[:KEY_BYTES], cover[KEY_BYTES:_COVER_BYTES], cover[_COVER_BYTES:]
        bound = _signed(binding, self._key, seed)
        if signer not in self._enrolled or not keys.has_signed(signer, signature, bound):
            raise BatchRefused(Refusal.UNKNOWN_SIGNER)
        return signer, seed


def _signed(binding: bytes, aggregator_key: bytes, seed: bytes) -> bytes:
    return b"shuffle-plugins/1 signed seed" + binding + aggregator_key + seed


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
    inputs = [statement(kind, *parts).digest for parts in (commitments, envelopes)]
    asked = (step.encode(), terms.digest(), encoded_number(minimum))
    return statement(kind, *asked, *inputs, *further).digest


def answer_statement(
    *, request: bytes, rejected: Mapping[int, Refusal], given: Sequence[bytes] = ()
) -> Statement:
    """An aggregator's statement of what it gives: its sum, or a verifier share of each good envelope.

    The request says which of them it is, or that envelopes were only to be checked.
    """
    return statement(b"shuffle-plugins/1 aggregator answer", request, *positions(rejected), *given)


class Sealed(NamedTuple):
    """What the server passes on to an aggregator about one client: its share's digest, and an envelope."""

    commitment: bytes
    envelope: bytes


@dataclass(frozen=True, slots=True)
class Expanded:
    """All that an aggregator answers about a round: the total of the expansions of so many seeds.

    ``rejected`` is why envelopes were dropped, by their positions.
    """

    total: Residues
    added: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


class Aggregator(BatchService):
    """Adds up the expansions of the seeds that a round's clients sealed to it.

    It gives out one sum per round: the difference of two sums could be one client's expansion, and with it
    the server could open that client's share. A bad envelope is dropped without the others, and the server
    is told its position. Where there are several aggregators, all must add up the same clients: the server
    first asks each which envelopes are good (:meth:`check`, as often as it likes), and then for the sum of
    those that all found good (``exact=True``).
    """

    role = "aggregator"

    def check(self, sealed: Iterable[Sealed], *, terms: SumTerms) -> dict[int, Refusal]:
        """Why each bad envelope of a round is bad, by its position; the round is not spent by this.

        WRONG_SIZE; UNREADABLE and UNKNOWN_SIGNER, see :class:`SeedOpener`; DUPLICATE for a second one of a
        signer.
        """
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
                a bad envelope with ``exact``.
        """
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
        return Expanded(expansion.total, added, rejected)

    def _opened(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, rejected: dict[int, Refusal], size: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each good envelope, and the secret of ``size`` bytes in it."""
        if self.public_key.sealing not in terms.aggregators:
            raise ShuffleError("the server asks for a sum among whose aggregators this one is not")
        opener = SeedOpener(terms=terms, private_key=self._key.sealing, enrolled=self._enrolled)
        sealed_size, signers = sealed_seed_size(size), set[bytes]()
        for position, (commitment, envelope) in enumerate(sealed):
            try:
                if len(envelope) != sealed_size:
                    raise BatchRefused(Refusal.WRONG_SIZE)
                signer, secret = opener.open(envelope, commitment=commitment)
                if signer in signers:
                    raise BatchRefused(Refusal.DUPLICATE)
            except BatchRefused as refused:
                rejected[position] = refused.code
                continue
            signers.add(signer)
            yield position, secret

    def _required(self, terms: SumTerms, minimum: int) -> int:
        return max(self.minimum, checks.whole("minimum", minimum, at_least=2), terms.context.minimum)
