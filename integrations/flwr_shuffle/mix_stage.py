"""The shuffle by a mix node as the server uses it: it relays ciphertexts, and reads a batch without order."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_shuffle.messages import Instruction, context_of, payload_of
from flwr_shuffle.mix_messages import (
    MIX_QUERY,
    ROLE_QUERY,
    MixerRole,
    MixRequest,
    read_batch,
    refusal_in,
)
from flwr_shuffle.reading import readable_reports
from flwr_shuffle.stages import Anonymous, ShuffleStage
from shuffle_plugins.mechanisms.reports import Reports
from shuffle_plugins.shuffler.base import check_minimum
from shuffle_plugins.shuffler.envelopes import envelope_size, open_reports
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal
from shuffle_plugins.shuffler.keys import SealingKey, generate_sealing_key, parse_public_key, public_bytes
from shuffle_plugins.shuffler.mixer import MixedBatch

_log = logging.getLogger("flwr")

_LONGEST_PAUSE = 8.0  # seconds between two questions to nodes that have not answered


class MixNodeStage(ShuffleStage):
    """Sends a round's envelopes to the mix node and opens what comes back.

    Clients seal their reports to this server inside, and to the mixer outside, with the mixer's key pinned in
    their own ``node_config``: nothing that this class or its host does can open an envelope. See
    docs/shuffling.md for what each party learns.

    Args:
        minimum: fewest reports the server wants to be told of, at least 2; the mixer's own minimum counts if
            it is larger.
        mixer_public_key: 64 hexadecimal digits, to pick one of several mix nodes; without it there must be
            exactly one.
        analyzer_private_key: to open the shuffled reports; a new one by default, which is right unless
            another process must read them too.
        discovery_timeout: seconds to look for the mix node.
        answer_timeout: seconds to wait for nodes to say whether they are the mixer.
        mix_timeout: seconds to wait for a batch, where the round's own timeout is not shorter.
        poll_interval: seconds between two looks for new nodes.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        *,
        minimum: int = 2,
        mixer_public_key: str | None = None,
        analyzer_private_key: SealingKey | None = None,
        discovery_timeout: float = 300.0,
        answer_timeout: float = 60.0,
        mix_timeout: float = 600.0,
        poll_interval: float = 1.0,
    ) -> None:
        times = {
            "discovery_timeout": discovery_timeout,
            "answer_timeout": answer_timeout,
            "mix_timeout": mix_timeout,
            "poll_interval": poll_interval,
        }
        for name, seconds in times.items():
            if not seconds > 0:
                raise ValueError(f"{name} must be positive, got {seconds!r}")
        self._minimum = check_minimum(minimum)
        self._wanted = None if mixer_public_key is None else parse_public_key(mixer_public_key)
        self._private_key = analyzer_private_key or generate_sealing_key()
        self._discovery_timeout = discovery_timeout
        self._answer_timeout = answer_timeout
        self._mix_timeout = mix_timeout
        self._poll_interval = poll_interval
        self._told: dict[int, MixerRole | None] = {}
        self._mixer: tuple[int, MixerRole] | None = None
        self._mix_nodes: frozenset[int] = frozenset()

    @property
    def trust(self) -> str:
        """One sentence: who must be trusted for the shuffle to be one."""
        return (
            "The mix node's operator sees who took part but no report, the server sees reports but not "
            "whose: the two must not work together."
        )

    @property
    def minimum(self) -> int:
        """Fewest reports that come back: the server's or the mixer's minimum, whichever is larger."""
        return max(self._minimum, self._mixer[1].minimum if self._mixer else 0)

    @property
    def analyzer_key(self) -> bytes:
        """Public key to which clients seal their reports, 32 bytes."""
        return public_bytes(self._private_key)

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Every node that said it mixes, those that have gone since included."""
        return self._mix_nodes

    def open(self, grid: Grid) -> None:
        """Find the mix node. Nodes are asked once, so this costs next to nothing when none has joined since.

        A mix node that was started anew is another node to Flower: the last one found with a key is taken.

        Raises:
            RuntimeError: if none is found in time, or several are and no key says which.
        """
        deadline = time.monotonic() + self._discovery_timeout
        pause = self._poll_interval
        while True:
            connected = dict.fromkeys(grid.get_node_ids())
            self._told |= self._asked(grid, [node for node in connected if node not in self._told])
            mixers = {node: role for node, role in self._told.items() if role and node in connected}
            self._mix_nodes |= frozenset(mixers)
            found = {
                role.public_key: (node, role)
                for node, role in mixers.items()
                if self._wanted in (None, role.public_key)
            }
            if len(found) > 1:
                raise RuntimeError(
                    f"mix nodes with {len(found)} keys are connected; say by mixer_public_key which one"
                )
            if found:
                [mixer] = found.values()
                if mixer != self._mixer:
                    _log.info("shuffle: mix node %d, public key %s", mixer[0], mixer[1].public_key.hex())
                self._mixer = mixer
                self._told = dict.fromkeys(connected) | self._told
                return
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    'no mix node is connected. Start a SuperNode with shuffle-role="mixer" and its files in '
                    "--node-config; if one runs, its log says what it lacks"
                )
            time.sleep(pause)
            pause = min(2 * pause, max(_LONGEST_PAUSE, self._poll_interval))

    def collect(
        self,
        replies: Sequence[Message],
        *,
        instruction: Instruction,
        dim: int,
        grid: Grid,
        timeout: float | None,
    ) -> Anonymous:
        """Have one round's envelopes mixed, and read the batch; see :meth:`ShuffleStage.collect`.

        A reply that cannot be an envelope is dropped here. One that was tampered with on the way makes the
        mixer refuse the batch.
        """
        answers = [reply for reply in replies if not reply.has_error()]
        participants = tuple(str(node) for node in sorted(reply.metadata.src_node_id for reply in answers))
        size = envelope_size(instruction.mechanism.report_bytes(dim=dim))
        envelopes = [payload for payload in map(_payload, answers) if len(payload) == size]
        unreadable = len(answers) - len(envelopes)
        context = context_of(instruction, dim=dim)
        try:
            if len(envelopes) < max(self.minimum, self.needed.reports, self.needed.answered):
                raise BatchRefused(Refusal.UNDER_MINIMUM)
            request = MixRequest(
                context=context,
                analyzer_key=instruction.analyzer_key,
                minimum=max(self._minimum, self.needed.reports),
                envelopes=envelopes,
            )
            batch = self._mixed(request, grid=grid, timeout=timeout)
        except BatchRefused as refused:
            return Anonymous(
                reports=None,
                answered=len(envelopes),
                participants=participants,
                unreadable=unreadable,
                refusal=refused.code,
            )
        opened = open_reports(batch.reports, context=context, analyzer_private_key=self._private_key)
        batches, _ = readable_reports(opened, mechanism=instruction.mechanism, dim=dim)
        damaged = len(batch.reports) - len(batches)
        return Anonymous(
            reports=Reports.concat(batches) if batches else None,
            answered=len(envelopes) - damaged,
            participants=participants,
            unreadable=unreadable + damaged,
            refusal=None if batches else Refusal.UNREADABLE,
        )

    def _mixed(self, request: MixRequest, *, grid: Grid, timeout: float | None) -> MixedBatch:
        try:
            self.open(grid)
        except RuntimeError as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_A_MIXER) from None
        assert self._mixer is not None
        message = Message(request.to_content(), self._mixer[0], MIX_QUERY)
        seconds = self._mix_timeout if timeout is None else min(timeout, self._mix_timeout)
        replies = list(grid.send_and_receive([message], timeout=seconds))
        if not replies or replies[0].has_error():
            self._told.clear()
            raise BatchRefused(Refusal.NO_ANSWER)
        return _read(replies[0].content, request)

    def _asked(self, grid: Grid, nodes: Sequence[int]) -> dict[int, MixerRole | None]:
        """What nodes say of themselves, None from one that is no mixer; silent ones are left out.

        So are errors: apps without a mix node answer with one, but so does a mix node whose process failed.
        """
        if not nodes:
            return {}
        questions = [Message(RecordDict(), node, ROLE_QUERY) for node in nodes]
        told: dict[int, MixerRole | None] = {}
        for reply in grid.send_and_receive(questions, timeout=self._answer_timeout):
            node = reply.metadata.src_node_id
            try:
                if not reply.has_error():
                    told[node] = _role(reply.content)
            except BatchRefused:
                _log.warning("shuffle: node %d is to be the mix node and cannot work: see its own log", node)
        return told


def _payload(reply: Message) -> bytes:
    try:
        return payload_of(reply)
    except ValueError:
        return b""


def _role(content: RecordDict) -> MixerRole | None:
    """What a node says of itself.

    Raises:
        BatchRefused: MISCONFIGURED, if it should mix and cannot.
    """
    try:
        if (code := refusal_in(content)) is Refusal.MISCONFIGURED:
            raise BatchRefused(code)
        return MixerRole.from_content(content)
    except BatchRefused:
        raise
    except ValueError:
        return None


def _read(content: RecordDict, request: MixRequest) -> MixedBatch:
    """The batch in a mixer's answer. One that cannot be read counts as lost: it may have held the reports."""
    try:
        code = refusal_in(content)
        if code is None:
            batch, token = read_batch(content)
    except ValueError:
        raise BatchRefused(Refusal.NO_ANSWER) from None
    if code is not None:
        raise BatchRefused(code)
    if token != request.context.token or batch.answered != len(request.envelopes):
        raise BatchRefused(Refusal.WRONG_ROUND)
    return batch
