"""Stages in the server's own process: reports are shuffled, or shares of a sum are added up."""

from __future__ import annotations

from dataclasses import replace

from flwr_shuffle.messages import payload_of, read_plain_payload
from flwr_shuffle.stages.stage import Anonymous, Replies, ShuffleStage
from flwr_shuffle.stages.valid_reports import readable_reports, valid_sum
from shuffle_plugins.shuffler import BatchRefused, InMemoryShuffler, Refusal, Shuffler


class InMemoryStage(ShuffleStage):
    """A shuffler in the server's own process, which must be trusted to forget whose report is whose.

    It is right for simulations, and for servers that clients trust. Otherwise use a :class:`MixNodeStage`.

    Args:
        shuffler: what shuffles the reports.

    Raises:
        ValueError: if ``shuffler`` is not a :class:`~shuffle_plugins.shuffler.Shuffler`.
    """

    def __init__(self, shuffler: Shuffler) -> None:
        if not isinstance(shuffler, Shuffler):
            raise ValueError(f"shuffler must be a Shuffler, got {shuffler!r}")
        self._shuffler = shuffler

    @property
    def trust(self) -> str:
        """The shuffler's own sentence on who must be trusted."""
        return self._shuffler.trust

    @property
    def minimum(self) -> int:
        """Fewest reports that the shuffler accepts."""
        return self._shuffler.minimum

    @property
    def takes_several(self) -> bool:
        """Whether clients may send several reports each: unless they are added up."""
        return not self.adds_up

    def collect(self, replies: Replies) -> Anonymous:
        """Shuffle the unsealed reports; see :meth:`ShuffleStage.collect`."""
        layout, encoded = replies.layout, list[bytes]()
        each, several = layout.report_bytes, replies.instruction.samples_per_client
        dummies = unreadable = 0
        for reply in replies.answers:
            try:
                sent = read_plain_payload(payload_of(reply), size=each * several)
            except ValueError:
                unreadable += 1
                continue
            if sent is not None:
                encoded += [sent[place * each : (place + 1) * each] for place in range(several)]
            elif replies.instruction.has_dummies:
                dummies += 1
        reports = readable_reports(encoded, layout=layout)
        count = replies.clients(0 if reports is None else len(reports))
        answered, unreadable = count + dummies, unreadable + replies.clients(len(encoded)) - count
        try:
            enough = count >= max(self.minimum, self.needed.reports)
            if reports is None or not enough or answered < self.needed.answered:
                raise BatchRefused(Refusal.UNDER_MINIMUM)
            reports = self._shuffler.shuffle_reports(reports)
        except BatchRefused as refused:
            return replies.anonymous(None, answered=answered, unreadable=unreadable, refusal=refused.code)
        return replies.anonymous(reports, answered=answered, unreadable=unreadable)


class SummingStage(InMemoryStage):
    """Adds up reports in the server's own process and gives back nothing but their sum.

    It is for reports that must be summed, such as those of a ``VectorSum``. The sum is all that the shuffled
    messages of such a protocol say. A single report may not protect its client at all, so this process must
    be trusted with the reports until they are added up.

    Args:
        minimum: fewest reports that are added up, at least 2. The strategy requires as many as the protocol's
            noise was calibrated for.
    """

    def __init__(self, *, minimum: int = 2) -> None:
        super().__init__(InMemoryShuffler(minimum=minimum))

    @property
    def trust(self) -> str:
        """One sentence: who must be trusted for the sum to be all that is seen."""
        return "this server process adds up the clients' reports and must be trusted with each of them"

    @property
    def adds_up(self) -> bool:
        """True: only the sum of the reports comes out."""
        return True

    def collect(self, replies: Replies) -> Anonymous:
        """Add up the reports; see :meth:`ShuffleStage.collect`. Impossible reports are left out."""
        shuffled = super().collect(replies)
        if shuffled.reports is None:
            return shuffled
        total = valid_sum(replies.instruction.mechanism.build(dim=replies.dim), shuffled.reports)
        left_out = len(shuffled.reports) - total.reports
        enough = total.reports >= max(self.minimum, self.needed.reports)
        return replace(
            shuffled,
            reports=None,
            answered=shuffled.answered - left_out,
            unreadable=shuffled.unreadable + left_out,
            total=total if enough else None,
            refusal=None if enough else Refusal.UNDER_MINIMUM,
        )
