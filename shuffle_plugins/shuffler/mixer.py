"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, Opened, check_several, layer_size
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES
from shuffle_plugins.shuffler.marks import agree
from shuffle_plugins.shuffler.permutation import DEFAULT_MEMORY, ExternalPermutation
from shuffle_plugins.shuffler.service import BatchService
from shuffle_plugins.shuffler.shuffler import RoundContext


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """What a mixer gives back of a round, and nothing else.

    Attributes:
        reports: ciphertexts for the analyzer, in uniformly random order, dummies gone.
            If a client's envelope holds several, they are as far apart as any others.
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
        masks: sums over the good ones' masks, for each mixer that comes after this one in a cascade.
    """

    reports: Iterator[bytes]
    count: int
    size: int
    answered: int
    rejected: Mapping[int, Refusal]
    masks: tuple[int, ...] = ()


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It is run by an organisation that does not work together with the server. It never sees a report: those
    are sealed to the analyzer. A bad envelope is dropped alone, and its position is told: whoever relays the
    envelopes could have left it out as well, so this says nothing new about the others. Each round is mixed
    once, whatever the outcome: mixing subsets of a batch would show who sent a dummy.

    In a mix cascade the first mixer drops what is no good. The others take exactly what the one before has
    signed (:meth:`BatchRequest.check_previous`), with a ticket of each client, and refuse the whole batch
    unless the marks say that there is one layer of each (:mod:`shuffle_plugins.shuffler.marks`). Dummies go
    through all layers, and the last mixer drops them.

    The arguments are those of :class:`BatchService`; ``minimum`` does not count dummies. Where clients send
    several reports each, it counts clients.
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
        """Mix a round's envelopes, as a single mixer. The round is spent on disk before anything else
        happens.

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
            memory=4 * max(1, size * len(envelopes)),  # they are in memory as it is
        )
        return MixedBatch(reports=list(stream.reports), answered=stream.answered, rejected=stream.rejected)

    def check_unspent(self, context: RoundContext) -> None:
        """Check that a round has not begun, without recording anything.

        Raises:
            BatchRefused: REPLAYED if it has.
            ShuffleError: if the state file cannot be read.
        """
        if context.token in self._spent:
            raise BatchRefused(Refusal.REPLAYED)

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
        earlier_masks: int = 0,
        memory: int = DEFAULT_MEMORY,
        directory: Path | str | None = None,
    ) -> MixedStream:
        """Mix envelopes of a round that :meth:`spend` has recorded, in bounded memory.

        The caller sees to it that a round is mixed once. All envelopes are read and opened before this
        returns.

        Args:
            envelopes: one for each client that answered, one after another; at a later mixer of a cascade,
                what the one before gave back, each with one of the tickets, in any order.
            context: as for :meth:`mix`.
            analyzer_key: as for :meth:`mix`.
            size: as for :meth:`mix`.
            count: how many envelopes there are.
            minimum: as for :meth:`mix`.
            mixer_keys: keys to which clients seal of all mixers of a cascade, in order; empty for a single
                mixer.
            earlier_masks: at a later mixer of a cascade, what the mixers before have signed as sums of their
                masks for it, added up.
            memory: bytes of reports to hold in memory; more go to an encrypted temporary file.
            directory: folder of that file; None for the system's own.

        Raises:
            BatchRefused: UNDER_MINIMUM, as for :meth:`mix`; at a later mixer of a cascade also INCONSISTENT
                if the layers are not one of each client whose ticket came, and a ticket's own code if it is
                no good.
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
        check_several(context, mixers=len(mixer_keys))
        # Of an envelope shorter than its layer none opens.
        whole = max(1, size - opener.ticket_bytes - opener.overhead)
        inner_size, rest = divmod(whole, context.reports)
        if rest or (context.reports > 1 and inner_size < layer_size(0, mixers=1, position=1)):
            raise ShuffleError(f"envelopes of {size} bytes do not hold {context.reports} reports of one size")
        permutation = ExternalPermutation(
            record_bytes=inner_size, expected=count * context.reports, memory=memory, directory=directory
        )
        tally = _Tally(opener, self._enrolled)
        try:
            for position, envelope in enumerate(envelopes):
                try:
                    if len(envelope) != size:  # another length would mark the report inside
                        raise BatchRefused(Refusal.WRONG_SIZE)
                    one = tally.take(envelope)
                except BatchRefused as refused:
                    tally.rejected[position] = refused.code
                    continue
                if one is not None and (one.real or not opener.last):
                    for start in range(0, whole, inner_size):
                        permutation.add(one.inner[start : start + inner_size])
            tally.check(earlier_masks)
            if tally.real < required:
                raise BatchRefused(Refusal.UNDER_MINIMUM, tally.rejected)
        except BaseException:
            permutation.close()
            raise
        return MixedStream(
            reports=permutation.drain(),
            count=len(permutation),
            size=inner_size,
            answered=tally.answered,
            rejected=tally.rejected,
            masks=tuple(tally.masks),
        )


class _Tally:
    """What a mixer counts and adds up while it opens a batch."""

    def __init__(self, opener: EnvelopeOpener, enrolled: frozenset[bytes]) -> None:
        self._opener = opener
        # Who has not come yet: the set shares its keys with the enrolled; one of those seen would not.
        self._absent = set(enrolled)
        self._masked = self._marks = 0
        self._whole = True
        self.answered = self.real = 0
        self.masks = [0] * opener.later
        self.rejected: dict[int, Refusal] = {}

    def take(self, envelope: bytes) -> Opened | None:
        """What is inside; None for a layer of a later mixer that does not open.

        Raises:
            BatchRefused: why the envelope is dropped, or, at a later mixer, the ticket is no good.
        """
        if self._opener.first:
            one = self._opener.open(envelope)
            self._come(one.signer, one.masks)
        else:
            split = len(envelope) - self._opener.ticket_bytes
            ticket = self._opener.open_ticket(envelope[split:])
            self._come(ticket.signer, ticket.masks)
            self._masked += ticket.masked
            try:
                one = self._opener.open(envelope[:split])
            except BatchRefused:
                self._whole = False  # its place in the batch says nothing about whose it is
                return None
            self._marks += one.mark
        self.real += one.real
        return one

    def check(self, earlier_masks: int) -> None:
        """Check, at a later mixer, that the layers are those of the clients whose tickets came.

        Raises:
            BatchRefused: INCONSISTENT if they are not; the ticket's own code if one was no good.
        """
        if self._opener.first:
            return
        for code in self.rejected.values():
            raise BatchRefused(code, self.rejected)
        agreed = agree(masked=self._masked, marks=self._marks, masks=earlier_masks)
        if not (self._whole and agreed):
            raise BatchRefused(Refusal.INCONSISTENT)

    def _come(self, signer: bytes, masks: tuple[int, ...]) -> None:
        if signer not in self._absent:
            raise BatchRefused(Refusal.DUPLICATE)
        self._absent.remove(signer)
        self.answered += 1
        self.masks = [sum(pair) for pair in zip(self.masks, masks, strict=True)]
