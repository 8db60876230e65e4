"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.base import RoundContext
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES
from shuffle_plugins.shuffler.permutation import DEFAULT_MEMORY, ExternalPermutation
from shuffle_plugins.shuffler.service import BatchService

_MARK_BYTES = 16  # of a digest by which equal ciphertexts are found


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStream:
    """A :class:`MixedBatch` whose reports come one after another, as they may not fit in memory.

    Attributes:
        reports: what is in the batch, each once, in uniformly random order.
        count: how many those are.
        size: bytes of each.
        answered: good envelopes, dummies included.
        rejected: why envelopes were dropped, by their positions among all.
    """

    reports: Iterator[bytes]
    count: int
    size: int
    answered: int
    rejected: Mapping[int, Refusal]


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It is run by an organisation that does not work together with the server. It never sees a report: those
    are sealed to the analyzer. A bad envelope is dropped alone, and its position is told: whoever relays the
    envelopes could have left it out as well, so this says nothing new about the others. Each round is mixed
    once, whatever the outcome: mixing subsets of a batch would show who sent a dummy.

    With mixers in a row the first one checks who signed an envelope. What the others open names nobody: they
    take the ciphertexts that the one before has signed (:meth:`BatchRequest.check_previous`), each once.

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
        mixer_keys: Sequence[bytes] = (),
    ) -> MixedBatch:
        """Mix a round's envelopes. The round is spent on disk before anything else happens.

        Args:
            envelopes: one per client that answered; at a later mixer of a row, what the one before gave back.
            context: the round as the server describes it; envelopes of clients that were told otherwise do
                not open.
            analyzer_key: public key to which clients were told to seal their reports.
            size: bytes of every envelope of the round.
            minimum: fewest reports that the server wants. The largest of this, of what the clients were
                promised (``context.minimum``), and of the mixer's own minimum holds.
            mixer_keys: keys to which clients seal of all mixers in a row, in order; empty for a single mixer.

        Returns:
            The batch. A single envelope is dropped for WRONG_SIZE; for UNREADABLE or UNKNOWN_SIGNER, see
            :class:`EnvelopeOpener`; and for DUPLICATE if one of the same signer, or at a later mixer the same
            ciphertext, came before it.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good reports; UNKNOWN_SIGNER,
                at a later mixer, for more envelopes than clients are enrolled.
            ShuffleError: if a key is malformed, or the state file cannot be written.
        """
        if not isinstance(analyzer_key, bytes) or len(analyzer_key) != KEY_BYTES:
            raise ShuffleError(f"a public key has {KEY_BYTES} bytes")
        checks.whole("minimum", minimum, at_least=2)
        self.spend(context)
        stream = self.mix_spent(
            envelopes,
            context=context,
            analyzer_key=analyzer_key,
            size=size,
            count=len(envelopes),
            minimum=minimum,
            mixer_keys=mixer_keys,
            memory=4 * max(1, size * len(envelopes)),  # they are in memory as it is
        )
        return MixedBatch(reports=list(stream.reports), answered=stream.answered, rejected=stream.rejected)

    def spend(self, context: RoundContext) -> None:
        """Record that a round has begun; on disk when this returns.

        Raises:
            BatchRefused: REPLAYED if it has begun before.
            ShuffleError: if the state file cannot be written.
        """
        self._spent.spend(context.token)

    def mix_spent(
        self,
        envelopes: Iterable[bytes],
        *,
        context: RoundContext,
        analyzer_key: bytes,
        size: int,
        count: int,
        minimum: int = 2,
        mixer_keys: Sequence[bytes] = (),
        memory: int = DEFAULT_MEMORY,
        directory: Path | str | None = None,
    ) -> MixedStream:
        """Mix envelopes of a round that :meth:`spend` has recorded, in bounded memory.

        The caller sees to it that a round is mixed once. All envelopes are read and opened before this
        returns.

        Args:
            envelopes: as for :meth:`mix`, one after another.
            context: as for :meth:`mix`.
            analyzer_key: as for :meth:`mix`.
            size: as for :meth:`mix`.
            count: how many envelopes there are.
            minimum: as for :meth:`mix`.
            mixer_keys: as for :meth:`mix`.
            memory: bytes of reports to hold in memory; more go to an encrypted temporary file.
            directory: folder of that file; None for the system's own.

        Raises:
            BatchRefused: UNDER_MINIMUM or UNKNOWN_SIGNER, as for :meth:`mix`.
            ShuffleError: if a key is malformed.
            OSError: if the temporary file cannot be written.
        """
        required = max(self._minimum, checks.whole("minimum", minimum, at_least=2), context.minimum)
        opener = EnvelopeOpener(
            context=context,
            analyzer_key=analyzer_key,
            private_key=self._key.sealing,
            enrolled=self._enrolled,
            mixer_keys=mixer_keys,
        )
        if not opener.first and count > len(self._enrolled):
            raise BatchRefused(Refusal.UNKNOWN_SIGNER)
        inner_size = max(1, size - opener.overhead)  # of an envelope shorter than that none opens
        permutation = ExternalPermutation(
            record_bytes=inner_size, expected=count, memory=memory, directory=directory
        )
        # Who has not come yet: the set shares its keys with the enrolled, where a set of those seen would
        # not.
        absent = set(self._enrolled) if opener.first else set()
        seen: set[bytes] = set()
        rejected: dict[int, Refusal] = {}
        answered = 0
        try:
            for position, envelope in enumerate(envelopes):
                try:
                    if len(envelope) != size:  # another length would mark the report inside
                        raise BatchRefused(Refusal.WRONG_SIZE)
                    one = opener.open(envelope)
                    if opener.first:
                        if one.signer not in absent:
                            raise BatchRefused(Refusal.DUPLICATE)
                        absent.remove(one.signer)
                    else:
                        mark = hashlib.sha256(envelope).digest()[:_MARK_BYTES]
                        if mark in seen:
                            raise BatchRefused(Refusal.DUPLICATE)
                        seen.add(mark)
                except BatchRefused as refused:
                    rejected[position] = refused.code
                    continue
                answered += 1
                if one.real:
                    permutation.add(one.inner)
            if len(permutation) < required:
                raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        except BaseException:
            permutation.close()
            raise
        return MixedStream(
            reports=permutation.drain(),
            count=len(permutation),
            size=inner_size,
            answered=answered,
            rejected=rejected,
        )
