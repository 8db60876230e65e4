"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.base import RoundContext, shuffled
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, Opened
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, MixerKey, MixerPublicKey
from shuffle_plugins.shuffler.statements import Statement
from shuffle_plugins.shuffler.tokens import SpentTokens


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """What a mixer gives back of a round, and nothing else.

    Attributes:
        reports: ciphertexts for the analyzer, in uniformly random order, dummies gone.
        answered: good envelopes, dummies included.
        rejected: why envelopes were dropped, by their positions among all.
    """

    reports: list[bytes]
    answered: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


class Mixer:
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It is run by an organisation that does not work together with the server. It never sees a report: those
    are sealed to the analyzer. A bad envelope is dropped alone, and its position is told: whoever relays the
    envelopes could have left it out as well, so this says nothing new about the others. Each round is mixed
    once, whatever the outcome: mixing subsets of a batch would show who sent a dummy.

    Args:
        key: the mixer's private keys; clients and the server pin the public ones.
        enrolled: public signing keys of the clients that may take part.
        minimum: fewest reports, dummies not counted, that are given out; at least 2.
        state: the file of spent rounds that was made with the key (:meth:`SpentTokens.create`).

    Raises:
        ShuffleError: if nobody is enrolled, or the state file is missing or another mixer's.
        ValueError: if the minimum is less than 2.
    """

    def __init__(self, *, key: MixerKey, enrolled: frozenset[bytes], minimum: int, state: Path | str) -> None:
        if not enrolled or any(len(client) != KEY_BYTES for client in enrolled):
            raise ShuffleError(f"a mixer needs enrolled clients, each by a public key of {KEY_BYTES} bytes")
        self._key = key
        self._enrolled = frozenset(enrolled)
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self._spent = SpentTokens(state, public_key=key.public.sealing)

    @property
    def minimum(self) -> int:
        """Fewest reports that are given out."""
        return self._minimum

    @property
    def public_key(self) -> MixerPublicKey:
        """The key that clients and the server pin."""
        return self._key.public

    def sign(self, statement: Statement) -> bytes:
        """The mixer's signature of a statement, 64 bytes; who pinned its public key can check it."""
        return statement.signed(self._key.signing)

    def mix(
        self,
        envelopes: Sequence[bytes],
        *,
        context: RoundContext,
        analyzer_key: bytes,
        size: int,
        minimum: int = 2,
    ) -> MixedBatch:
        """Mix a round's envelopes. The round is spent on disk before anything else happens.

        Args:
            envelopes: one per client that answered.
            context: the round as the server describes it; envelopes of clients that were told otherwise do
                not open.
            analyzer_key: public key to which clients were told to seal their reports.
            size: bytes of every envelope of the round.
            minimum: fewest reports that the server wants. The largest of this, of what the clients were
                promised (``context.minimum``), and of the mixer's own minimum holds.

        Returns:
            The batch. A single envelope is dropped for WRONG_SIZE; for UNREADABLE or UNKNOWN_SIGNER, see
            :class:`EnvelopeOpener`; and for DUPLICATE if one of the same signer came before it.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good reports.
            ShuffleError: if the analyzer's key is malformed, or the state file cannot be written.
        """
        if not isinstance(analyzer_key, bytes) or len(analyzer_key) != KEY_BYTES:
            raise ShuffleError(f"a public key has {KEY_BYTES} bytes")
        required = max(self._minimum, checks.whole("minimum", minimum, at_least=2), context.minimum)
        self._spent.spend(context.token)
        opener = EnvelopeOpener(
            context=context,
            analyzer_key=analyzer_key,
            private_key=self._key.sealing,
            enrolled=self._enrolled,
        )
        opened: dict[bytes, Opened] = {}
        rejected: dict[int, Refusal] = {}
        for position, envelope in enumerate(envelopes):
            try:
                if len(envelope) != size:  # another length would mark the report inside
                    raise BatchRefused(Refusal.WRONG_SIZE)
                one = opener.open(envelope)
                if one.signer in opened:
                    raise BatchRefused(Refusal.DUPLICATE)
                opened[one.signer] = one
            except BatchRefused as refused:
                rejected[position] = refused.code
        reports = [one.inner for one in opened.values() if one.real]
        if len(reports) < required:
            raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        return MixedBatch(reports=shuffled(reports), answered=len(opened), rejected=rejected)
