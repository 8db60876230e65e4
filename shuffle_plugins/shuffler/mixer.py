"""The mixer: takes sealed envelopes of a round, and gives back what is inside in no order."""

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
    """What a mixer says about a round: all of it.

    Attributes:
        reports: ciphertexts for the analyzer, in uniformly random order, dummies gone.
        answered: good envelopes, dummies included.
        rejected: by position among the envelopes, those that were dropped and why.
    """

    reports: list[bytes]
    answered: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


class Mixer:
    """Peels the outer layer off a round's envelopes, drops dummies, permutes the rest.

    Runs with an organisation that does not work together with the server. It never sees a report: those are
    sealed to the analyzer. An envelope that is no good is dropped by itself, and told by its position: who
    relays envelopes could have left it out as well, so this says nothing new about the others. A round is
    spent whatever comes of it: who could try subsets of a batch would learn who sent a dummy.

    Args:
        key: the mixer's; clients and the server pin the public part.
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
        """A signature by which whoever pinned the public key knows that this mixer says so; 64 bytes."""
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
            context: the round as the server tells it; clients must have heard the same.
            analyzer_key: public key to which clients were told to seal their reports.
            size: bytes of every envelope of the round.
            minimum: fewest reports the asker wants; the largest of this, of what the clients were promised
                (``context.minimum``), and of the mixer's own counts.

        Returns:
            The batch. An envelope is dropped by itself for WRONG_SIZE; for UNREADABLE or UNKNOWN_SIGNER, as
            :class:`EnvelopeOpener` says; and for DUPLICATE if one of the same signer came before it.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good reports.
            ShuffleError: if the analyzer's key is none, or the state file cannot be written.
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
