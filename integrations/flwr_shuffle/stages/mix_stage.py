"""The server's side of mix nodes: it relays envelopes to them and opens the shuffled reports."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flwr.serverapp import Grid
from typing_extensions import override

from flwr_shuffle.grids import Waiting
from flwr_shuffle.messages import context_of
from flwr_shuffle.service_messages import Answer, MixMessage, Role
from flwr_shuffle.stages.service_nodes import ServiceStage, payload_or_nothing
from flwr_shuffle.stages.stage import Anonymous, Replies, readable_reports
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, MixedStatement, Refusal, RoundContext, keys
from shuffle_plugins.shuffler.envelopes import envelope_size, open_reports, part_sizes
from shuffle_plugins.shuffler.keys import SealingKey

_log = logging.getLogger("flwr")


class MixNodeStage(ServiceStage):
    """Sends a round's envelopes to the mix node, or through several, and opens the reports that come back.

    Clients seal their reports twice: the inner layer to this server, the outer layer to the mixer, whose key
    is pinned in the clients' own ``node_config``. So the server cannot open an envelope. The mix node proves
    its identity by signatures: nodes that only say that they are the mixer are ignored, and a batch that the
    mixer did not sign for this round is refused. docs/guides/shuffling.md says what each party learns.

    Args:
        mixer_public_key: 128 hexadecimal digits, as ``shuffle-plugins keys mixer`` prints them: the key that
            clients pin. It comes from the mixer's operator, never from the node. For a mix cascade, all
            keys in the order in which the mixers work: a sequence of strings, or one string with commas
            between the keys.
        minimum: fewest reports that a mixer may give out together, at least 2. If the mixer's own minimum is
            larger, that one applies.
        analyzer_private_key: the key that opens the shuffled reports. By default a new one is made; give one
            only if another process must read the reports too.
        exclude_after: a node that answered this many rounds in a row, and never with a good envelope, is not
            invited any more; None never excludes a node. A round counts only if other nodes' envelopes were
            good.
        piece_bytes: a batch larger than this is sent in several messages (pieces) of about this many bytes;
            32 MiB by default.
        waiting: how long to wait for the mix nodes.
    """

    role = Role.MIXER

    def __init__(
        self,
        *,
        mixer_public_key: str | Sequence[str],
        minimum: int = 2,
        analyzer_private_key: SealingKey | None = None,
        exclude_after: int | None = 3,
        piece_bytes: int = 1 << 25,
        waiting: Waiting | None = None,
    ) -> None:
        cascade = keys.parse_mix_cascade(mixer_public_key)
        super().__init__(cascade, minimum=minimum, exclude_after=exclude_after, waiting=waiting)
        self._piece_bytes = checks.whole("piece_bytes", piece_bytes)
        self._private_key = analyzer_private_key or keys.SealingKey.generate()
        self.analyzer_key = keys.public_key_bytes(self._private_key)
        self.mixers = len(cascade)
        self.takes_several = self.mixers == 1
        self._mixed_before = False
        # Before any batch was mixed, one was refused as when parties list the mixers in different orders.
        self._wrong_order = False

    @property
    @override
    def trust(self) -> str:
        if self.mixers > 1:
            return (
                f"The first of {self.mixers} mix nodes in a cascade sees who took part, none sees a report, "
                "the server sees reports but not whose: not all of the mix nodes may work together with it."
            )
        return (
            "The mix node's operator sees who took part but no report, the server sees reports but not "
            "whose: the two must not work together."
        )

    @override
    def open(self, grid: Grid) -> None:
        if self._wrong_order:
            raise RuntimeError(
                "the mixers of the cascade have refused everything: server, mixers and clients do not name "
                "the same mixers in the same order. mixer_public_key of the server's MixNodeStage must list "
                "the keys as shuffle-mixer-public-key does in the node_config of every mixer and client. If "
                "they are the same, see the mixers' own logs"
            )
        super().open(grid)

    @override
    def collect(self, replies: Replies) -> Anonymous:
        instruction = replies.instruction
        several = instruction.samples_per_client
        size = envelope_size(replies.layout.report_bytes, mixers=self.mixers, reports=several)
        payloads = {reply.metadata.src_node_id: payload_or_nothing(reply) for reply in replies.answers}
        envelopes = {node: payload for node, payload in payloads.items() if len(payload) == size}
        bad = dict.fromkeys(payloads.keys() - envelopes.keys(), Refusal.WRONG_SIZE)
        unreadable = len(payloads) - len(envelopes)
        context = context_of(instruction, dim=replies.dim)
        needed = max(self.minimum, self.needed.reports, instruction.minimum)
        try:
            if len(envelopes) < max(needed, self.needed.answered):
                raise BatchRefused(Refusal.UNDER_MINIMUM)
            mixed, said = self._mixed(list(envelopes.values()), context=context, replies=replies)
            self._mixed_before = True
        except BatchRefused as refused:
            all_bad = len(refused.rejected) == len(envelopes) and set(refused.rejected.values()) == {
                Refusal.UNREADABLE
            }
            suspected = self.mixers > 1 and (refused.code is Refusal.MISCONFIGURED or all_bad)
            self._wrong_order = suspected and not self._mixed_before
            self._note(bad, refused.rejected, nodes=list(envelopes))
            good = len(envelopes) - len(refused.rejected)
            if refused.code is Refusal.UNDER_MINIMUM and not instruction.has_dummies:
                good = min(good, needed - 1)  # the others sent dummies, though all were asked for reports
            return replies.anonymous(None, answered=good, unreadable=unreadable, refusal=refused.code)
        self._note(bad, said.rejected, nodes=list(envelopes))
        opened = open_reports(mixed, context=context, analyzer_private_key=self._private_key)
        reports = readable_reports(opened, layout=replies.layout)
        sent = replies.clients(len(mixed))
        answered = said.answered if instruction.has_dummies else sent
        damaged = sent - replies.clients(0 if reports is None else len(reports))
        return replies.anonymous(
            reports,
            answered=answered - damaged,
            unreadable=unreadable + len(said.rejected) + damaged,
            refusal=Refusal.UNREADABLE if reports is None else None,
        )

    def _mixed(
        self, envelopes: list[bytes], *, context: RoundContext, replies: Replies
    ) -> tuple[list[bytes], MixedStatement]:
        """Send the envelopes through all mixers in order.

        Returns:
            What the last one gives back, and what the first one, which drops bad envelopes, has signed.
        """
        sizes = part_sizes(replies.layout.report_bytes, mixers=self.mixers, reports=context.reports)
        parts = _split(envelopes, sizes=sizes)
        layers, taken = parts[0], list(range(len(envelopes)))
        previous: list[MixedStatement] = []
        for position, mixer in enumerate(self._opened(replies.grid)):
            tickets = [parts[position][place] for place in taken] if position else [b""] * len(layers)
            items = [layer + ticket for layer, ticket in zip(layers, tickets, strict=True)]
            request = BatchRequest.of(
                items,
                context=context,
                analyzer_key=replies.instruction.analyzer_key,
                mixers=self._pinned,
                minimum=max(self._minimum, self.needed.reports),
                previous=previous,
            )
            try:
                layers, said = self._mixed_by(mixer, request, items, replies=replies)
            except BatchRefused as refused:
                _log.error("shuffle: mixer %d of %d: %s", position + 1, self.mixers, refused)
                # A later mixer counts positions among the envelopes that the first one found good.
                rejected = {taken[place]: code for place, code in refused.rejected.items()}
                raise BatchRefused(refused.code, rejected) from None
            previous.append(said)
            if position == 0:
                taken = [place for place in taken if place not in said.rejected]
            if position + 1 < self.mixers and len(layers) != len(taken):
                raise BatchRefused(Refusal.NOT_PROVEN)
        return layers, previous[0]

    def _mixed_by(
        self, node: int, request: BatchRequest, items: list[bytes], *, replies: Replies
    ) -> tuple[list[bytes], MixedStatement]:
        """Have one mixer mix some items. Returns what it gives back, and what it has signed about that."""
        number, most = (max(1, self._piece_bytes // size) for size in (request.size, request.output_size))
        said, first, taken = None, 0, list[bytes]()
        while said is None:
            piece = MixMessage(request=request, first=first, items=items[first : first + number], most=most)
            answer = self._answer(piece, node=node, replies=replies)
            said, taken = answer.said, list(answer.items)
            first += number
        while left := said.count - len(taken):
            wanted = MixMessage(request=request, first=len(taken), most=min(most, left))
            taken += self._answer(wanted, node=node, replies=replies).items
        try:
            request.check_outputs(taken, said=said)
        except ValueError as error:
            self._forget()
            _log.error("shuffle: node %d: %s", node, error)
            raise error if isinstance(error, BatchRefused) else BatchRefused(Refusal.NO_ANSWER) from None
        return taken, said

    def _answer(self, asked: MixMessage, *, node: int, replies: Replies) -> Answer:
        """Send a message to a mix node, and read its answer."""
        answer = self._asked(replies, {node: asked}, lambda _, content: asked.read(content))[node]
        if isinstance(answer, BatchRefused):
            raise answer
        return answer


def _split(envelopes: Sequence[bytes], *, sizes: Sequence[int]) -> list[list[bytes]]:
    """Split all envelopes into parts: the layers for the first mixer, and the tickets of each later one."""
    parts, start = [], 0
    for size in sizes:
        parts.append([envelope[start : start + size] for envelope in envelopes])
        start += size
    return parts
