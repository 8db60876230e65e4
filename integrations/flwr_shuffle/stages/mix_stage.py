"""The server's side of a mix node: it relays envelopes to the node and opens the shuffled reports."""

from __future__ import annotations

import logging

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_shuffle.messages import context_of
from flwr_shuffle.mix_messages import MIX_QUERY, MixRequest, read_answer
from flwr_shuffle.service_messages import Role
from flwr_shuffle.stages.base import Anonymous, Replies, ShuffleStage
from flwr_shuffle.stages.service_nodes import Offenders, ServiceNodes, Waiting, payload_or_nothing
from flwr_shuffle.stages.valid_reports import readable_reports
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    BatchRefused,
    MixedBatch,
    Refusal,
    SealingKey,
    envelope_size,
    keys,
    open_reports,
)

_log = logging.getLogger("flwr")


class MixNodeStage(ShuffleStage):
    """Sends a round's envelopes to the mix node and opens the reports that come back.

    Clients seal their reports twice: inside to this server, outside to the mixer, whose key is pinned in the
    clients' own ``node_config``. So the server cannot open an envelope. The mix node proves who it is by
    signatures: nodes that only say that they are the mixer are ignored, and a batch that it did not sign for
    this round is refused. See docs/guides/shuffling.md for what each party learns.

    Args:
        mixer_public_key: 128 hexadecimal digits, as ``shuffle-plugins keys mixer`` prints them: the key that
            clients pin. It comes from the mixer's operator, never from the node.
        minimum: fewest reports with which a batch is let through, at least 2; the mixer's own minimum counts
            if it is larger.
        analyzer_private_key: to open the shuffled reports; a new one by default, which is right unless
            another process must read them too.
        discovery_timeout: seconds to look for the mix node.
        answer_timeout: seconds to wait for nodes to say whether they are the mixer.
        mix_timeout: seconds to wait for a batch, where the round's own timeout is not shorter.
        poll_interval: seconds between two looks for new nodes.
        exclude_after: a node that answered this many rounds in a row, and never with a good envelope, is not
            invited any more; None invites it for ever. It is noticed only where others' envelopes were good.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        *,
        mixer_public_key: str,
        minimum: int = 2,
        analyzer_private_key: SealingKey | None = None,
        discovery_timeout: float = 300.0,
        answer_timeout: float = 60.0,
        mix_timeout: float = 600.0,
        poll_interval: float = 1.0,
        exclude_after: int | None = 3,
    ) -> None:
        waiting = Waiting(
            discovery_timeout=discovery_timeout,
            answer_timeout=answer_timeout,
            work_timeout=mix_timeout,
            poll_interval=poll_interval,
        )
        self._offenders = Offenders(exclude_after=exclude_after)
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        pinned = keys.parse_mixer_public_key(mixer_public_key)
        self._private_key = analyzer_private_key or keys.generate_sealing_key()
        self._nodes = ServiceNodes(Role.MIXER, pinned=[pinned], waiting=waiting)

    @property
    def trust(self) -> str:
        """One sentence: who must be trusted for reports to come out without names and order."""
        return (
            "The mix node's operator sees who took part but no report, the server sees reports but not "
            "whose: the two must not work together."
        )

    @property
    def minimum(self) -> int:
        """Fewest reports that come back: the larger one of the server's and the mixer's minimum."""
        return max([self._minimum, *(found.role.minimum for found in self._nodes.found)])

    @property
    def analyzer_key(self) -> bytes:
        """Public key to which clients seal their reports, 32 bytes."""
        return keys.public_key_bytes(self._private_key)

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Ids of nodes that claimed to be the mix node, and of nodes that never sent a good envelope."""
        return self._nodes.claimed | self._offenders.nodes

    def open(self, grid: Grid) -> None:
        """Find the mix node; see :meth:`ServiceNodes.open`.

        Raises:
            RuntimeError: if it is not found in time, or two nodes prove that they are the mixer.
        """
        self._nodes.open(grid)

    def collect(self, replies: Replies) -> Anonymous:
        """Have one round's envelopes mixed, and read the batch; see :meth:`ShuffleStage.collect`.

        A reply that cannot be an envelope is dropped here. The mixer drops envelopes that are not good, and
        says at which positions they were, so that the log can name the nodes.
        """
        instruction = replies.instruction
        size = envelope_size(replies.layout.report_bytes)
        payloads = {reply.metadata.src_node_id: payload_or_nothing(reply) for reply in replies.answers}
        envelopes = {node: payload for node, payload in payloads.items() if len(payload) == size}
        bad = dict.fromkeys(payloads.keys() - envelopes.keys(), Refusal.WRONG_SIZE)
        unreadable = len(payloads) - len(envelopes)
        context = context_of(instruction, dim=replies.dim)
        needed = max(self.minimum, self.needed.reports, instruction.minimum)
        try:
            if len(envelopes) < max(needed, self.needed.answered):
                raise BatchRefused(Refusal.UNDER_MINIMUM)
            request = MixRequest(
                context=context,
                analyzer_key=instruction.analyzer_key,
                minimum=max(self._minimum, self.needed.reports),
                size=size,
                envelopes=list(envelopes.values()),
            )
            batch = self._mixed(request, grid=replies.grid, timeout=replies.timeout)
        except BatchRefused as refused:
            self._offenders.note(bad, refused.rejected, nodes=list(envelopes))
            good = len(envelopes) - len(refused.rejected)
            if refused.code is Refusal.UNDER_MINIMUM and not instruction.has_dummies:
                good = min(good, needed - 1)  # the others sent dummies, though all were asked for reports
            return replies.anonymous(None, answered=good, unreadable=unreadable, refusal=refused.code)
        self._offenders.note(bad, batch.rejected, nodes=list(envelopes))
        opened = open_reports(batch.reports, context=context, analyzer_private_key=self._private_key)
        reports = readable_reports(opened, layout=replies.layout)
        answered = batch.answered if instruction.has_dummies else len(batch.reports)
        damaged = len(batch.reports) - (0 if reports is None else len(reports))
        return replies.anonymous(
            reports,
            answered=answered - damaged,
            unreadable=unreadable + len(batch.rejected) + damaged,
            refusal=Refusal.UNREADABLE if reports is None else None,
        )

    def _mixed(self, request: MixRequest, *, grid: Grid, timeout: float | None) -> MixedBatch:
        try:
            [mixer] = self._nodes.open(grid)
        except RuntimeError as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_A_MIXER) from None
        message = Message(request.to_content(), mixer.node, MIX_QUERY)
        replies = self._nodes.ask(grid, [message], timeout=timeout)
        try:
            if not replies or replies[0].has_error():
                raise BatchRefused(Refusal.NO_ANSWER)
            return _read(replies[0].content, request, verifying_key=self._nodes.pinned[0].verifying)
        except BatchRefused as refused:
            if refused.code in (Refusal.NO_ANSWER, Refusal.NOT_PROVEN):
                self._nodes.forget()
            if refused.code is Refusal.NOT_PROVEN:
                _log.error("shuffle: node %d: %s", mixer.node, refused)
            raise


def _read(content: RecordDict, request: MixRequest, *, verifying_key: bytes) -> MixedBatch:
    """The batch in a mixer's answer. An answer that cannot be read counts as lost: it may have held one."""
    try:
        return read_answer(content, request=request, verifying_key=verifying_key)
    except BatchRefused:
        raise
    except ValueError:
        raise BatchRefused(Refusal.NO_ANSWER) from None
