"""The mixer: takes sealed envelopes of a round, and gives back what is inside in no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shuffle_plugins.shuffler.base import check_minimum
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, RoundContext
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, SealingKey, public_bytes
from shuffle_plugins.shuffler.permutation import shuffled
from shuffle_plugins.shuffler.tokens import SpentTokens


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """What a mixer says about a round: all of it.

    Attributes:
        reports: ciphertexts for the analyzer, in uniformly random order, dummies gone.
        answered: envelopes taken, dummies included.
    """

    reports: list[bytes]
    answered: int


class Mixer:
    """Peels the outer layer off a round's envelopes, drops dummies, permutes the rest.

    Runs with an organisation that does not work together with the server. It never sees a report: those are
    sealed to the analyzer. A batch is refused as a whole, with a code that names nobody, and its round is
    spent: who could try subsets of a batch would learn who sent a dummy.

    Args:
        private_key: the mixer's; clients pin the public one.
        enrolled: public signing keys of the clients that may take part.
        minimum: fewest reports, dummies not counted, that are given out; at least 2.
        state: the file of spent rounds that was made with the key (:meth:`SpentTokens.create`).

    Raises:
        ShuffleError: if nobody is enrolled, or the state file is missing or another mixer's.
        ValueError: if the minimum is less than 2.
    """

    def __init__(
        self, *, private_key: SealingKey, enrolled: frozenset[bytes], minimum: int, state: Path | str
    ) -> None:
        if not enrolled or any(len(key) != KEY_BYTES for key in enrolled):
            raise ShuffleError(f"a mixer needs enrolled clients, each by a public key of {KEY_BYTES} bytes")
        self._private_key = private_key
        self._enrolled = frozenset(enrolled)
        self._minimum = check_minimum(minimum)
        self._spent = SpentTokens(state, public_key=public_bytes(private_key))

    @property
    def minimum(self) -> int:
        """Fewest reports that are given out."""
        return self._minimum

    @property
    def public_key(self) -> bytes:
        """The key that clients pin, 32 bytes."""
        return public_bytes(self._private_key)

    def mix(
        self, envelopes: Sequence[bytes], *, context: RoundContext, analyzer_key: bytes, minimum: int = 2
    ) -> MixedBatch:
        """Mix a round's envelopes. The round is spent on disk before anything else happens.

        Args:
            envelopes: one per client that answered.
            context: the round as the server tells it; clients must have heard the same.
            analyzer_key: public key to which clients were told to seal their reports.
            minimum: fewest reports the asker wants; the largest of this, of what the clients were promised
                (``context.minimum``), and of the mixer's own counts.

        Raises:
            BatchRefused: REPLAYED for a spent round; WRONG_SIZE for envelopes of several lengths; DUPLICATE
                for one twice, or two of one signer; UNREADABLE or UNKNOWN_SIGNER for one that
                :class:`EnvelopeOpener` refuses; UNDER_MINIMUM for too few reports.
            ShuffleError: if the analyzer's key is none, or the state file cannot be written.
        """
        if not isinstance(analyzer_key, bytes) or len(analyzer_key) != KEY_BYTES:
            raise ShuffleError(f"a public key has {KEY_BYTES} bytes")
        required = max(self._minimum, check_minimum(minimum), context.minimum)
        self._spent.spend(context.token)
        if len({len(envelope) for envelope in envelopes}) > 1:
            raise BatchRefused(Refusal.WRONG_SIZE)
        if len(set(envelopes)) < len(envelopes):
            raise BatchRefused(Refusal.DUPLICATE)
        opener = EnvelopeOpener(
            context=context,
            analyzer_key=analyzer_key,
            private_key=self._private_key,
            enrolled=self._enrolled,
        )
        opened = [opener.open(envelope) for envelope in envelopes]
        if len({one.signer for one in opened}) < len(opened):
            raise BatchRefused(Refusal.DUPLICATE)
        reports = [one.inner for one in opened if one.real]
        if len(reports) < required:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        return MixedBatch(reports=shuffled(reports), answered=len(opened))
