"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.base import RoundContext, shuffled
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, Opened
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES
from shuffle_plugins.shuffler.service import BatchService


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


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It is run by an organisation that does not work together with the server. It never sees a report: those
    are sealed to the analyzer. A bad envelope is dropped alone, and its position is told: whoever relays the
    envelopes could have left it out as well, so this says nothing new about the others. Each round is mixed
    once, whatever the outcome: mixing subsets of a batch would show who sent a dummy.

    The arguments are those of :class:`BatchService`; ``minimum`` does not count dummies.
    """

    role = "mixer"

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
