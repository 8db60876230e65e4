"""The server's side of a mix node: it relays envelopes to the node and opens the shuffled reports."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_shuffle.messages import context_of, payload_of
from flwr_shuffle.mix_messages import (
    MIX_QUERY,
    ROLE_QUERY,
    MixerRole,
    MixRequest,
    WrongVersionError,
    question_content,
    read_answer,
    refusal_in,
)
from flwr_shuffle.stages.base import Anonymous, Replies, ShuffleStage
from flwr_shuffle.stages.valid_reports import readable_reports
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    CHALLENGE_BYTES,
    BatchRefused,
    MixedBatch,
    Refusal,
    SealingKey,
    envelope_size,
    keys,
    open_reports,
)

_log = logging.getLogger("flwr")

_LONGEST_PAUSE = 8.0  # seconds between two questions to nodes that have not answered
_NAMED = 10  # nodes that a line of the log names


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
        times = {
            "discovery_timeout": discovery_timeout,
            "answer_timeout": answer_timeout,
            "mix_timeout": mix_timeout,
            "poll_interval": poll_interval,
        }
        for name, seconds in times.items():
            if not seconds > 0:
                raise ValueError(f"{name} must be positive, got {seconds!r}")
        if exclude_after is not None:
            checks.whole("exclude_after", exclude_after)
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self._pinned = keys.parse_mixer_public_key(mixer_public_key)
        self._private_key = analyzer_private_key or keys.generate_sealing_key()
        self._discovery_timeout = discovery_timeout
        self._answer_timeout = answer_timeout
        self._mix_timeout = mix_timeout
        self._poll_interval = poll_interval
        self._roles: dict[int, MixerRole | None] = {}
        self._mixer: tuple[int, MixerRole] | None = None
        self._mix_nodes: frozenset[int] = frozenset()
        self._exclude_after = exclude_after
        self._bad_rounds: Counter[int] = Counter()
        self._offenders: frozenset[int] = frozenset()

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
        return max(self._minimum, self._mixer[1].minimum if self._mixer else 0)

    @property
    def analyzer_key(self) -> bytes:
        """Public key to which clients seal their reports, 32 bytes."""
        return keys.public_key_bytes(self._private_key)

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Ids of nodes that claimed to be the mix node, and of nodes that never sent a good envelope."""
        return self._mix_nodes | self._offenders

    def open(self, grid: Grid) -> None:
        """Find the mix node. Each node is asked once, so this is fast when none has joined since.

        A mix node that was restarted is another node to Flower, and the old one counts as connected for a
        while: if two have proven that they are the mixer, both are asked again, and the one that answers is
        the mix node.

        Raises:
            RuntimeError: if none is found in time, or two prove that they are the mixer.
        """
        deadline = time.monotonic() + self._discovery_timeout
        pause = self._poll_interval
        while True:
            connected = dict.fromkeys(grid.get_node_ids())
            self._roles |= self._asked(grid, [node for node in connected if node not in self._roles])
            mixers = {node: role for node, role in self._roles.items() if role and node in connected}
            if len(mixers) > 1:
                self._roles |= dict.fromkeys(mixers) | self._asked(grid, list(mixers))
                mixers = {node: role for node in mixers if (role := self._roles[node])}
            if len(mixers) > 1:
                raise RuntimeError(
                    f"nodes {_named(mixers)} all hold the mixer's private keys: stop all but one. If you did "
                    "not start them, the keys are stolen: make new ones"
                )
            if mixers:
                [mixer] = mixers.items()
                if mixer != self._mixer:
                    _log.info("shuffle: mix node %d, public key %s", mixer[0], self._pinned.hex())
                self._mixer = mixer
                self._roles = dict.fromkeys(connected) | self._roles
                return
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    "no mix node with the pinned keys is connected. Start a SuperNode with "
                    'shuffle-role="mixer" and its files in --node-config; if one runs, see its log and the '
                    "warnings above"
                )
            self._roles = {node: role for node, role in self._roles.items() if node not in self._mix_nodes}
            time.sleep(pause)
            pause = min(2 * pause, max(_LONGEST_PAUSE, self._poll_interval))

    def collect(self, replies: Replies) -> Anonymous:
        """Have one round's envelopes mixed, and read the batch; see :meth:`ShuffleStage.collect`.

        A reply that cannot be an envelope is dropped here. The mixer drops envelopes that are not good, and
        says at which positions they were, so that the log can name the nodes.
        """
        instruction = replies.instruction
        size = envelope_size(replies.layout.report_bytes)
        payloads = {reply.metadata.src_node_id: _payload(reply) for reply in replies.answers}
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
            self._note_bad(bad, refused.rejected, nodes=list(envelopes))
            good = len(envelopes) - len(refused.rejected)
            if refused.code is Refusal.UNDER_MINIMUM and instruction.participation == 1:
                good = min(good, needed - 1)  # the others sent dummies, though all were asked for reports
            return replies.anonymous(None, answered=good, unreadable=unreadable, refusal=refused.code)
        self._note_bad(bad, batch.rejected, nodes=list(envelopes))
        opened = open_reports(batch.reports, context=context, analyzer_private_key=self._private_key)
        reports = readable_reports(opened, layout=replies.layout)
        answered = batch.answered if instruction.participation < 1 else len(batch.reports)
        damaged = len(batch.reports) - (0 if reports is None else len(reports))
        return replies.anonymous(
            reports,
            answered=answered - damaged,
            unreadable=unreadable + len(batch.rejected) + damaged,
            refusal=Refusal.UNREADABLE if reports is None else None,
        )

    def _mixed(self, request: MixRequest, *, grid: Grid, timeout: float | None) -> MixedBatch:
        try:
            self.open(grid)
        except RuntimeError as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_A_MIXER) from None
        assert self._mixer is not None
        mixer = self._mixer[0]
        message = Message(request.to_content(), mixer, MIX_QUERY)
        seconds = self._mix_timeout if timeout is None else min(timeout, self._mix_timeout)
        replies = list(grid.send_and_receive([message], timeout=seconds))
        try:
            if not replies or replies[0].has_error():
                raise BatchRefused(Refusal.NO_ANSWER)
            return _read(replies[0].content, request, verifying_key=self._pinned.verifying)
        except BatchRefused as refused:
            if refused.code in (Refusal.NO_ANSWER, Refusal.NOT_PROVEN):
                self._roles.clear()  # ask all nodes again who is the mixer
            if refused.code is Refusal.NOT_PROVEN:
                _log.error("shuffle: node %d: %s", mixer, refused)
            raise

    def _asked(self, grid: Grid, nodes: Sequence[int]) -> dict[int, MixerRole | None]:
        """The role that each node has proven, None for a node that is not the mixer.

        Nodes that do not answer are left out, and so are those that answer by an error: apps without a mix
        node do, but so does a mix node whose process failed.
        """
        if not nodes:
            return {}
        challenges = {node: secrets.token_bytes(CHALLENGE_BYTES) for node in nodes}
        run = str(grid.run.run_id)
        questions = [Message(question_content(challenges[node]), node, ROLE_QUERY) for node in nodes]
        roles: dict[int, MixerRole | None] = {}
        for reply in grid.send_and_receive(questions, timeout=self._answer_timeout):
            node = reply.metadata.src_node_id
            if reply.has_error() or node not in challenges:
                continue
            try:
                role = _role(reply.content, node)
            except BatchRefused:
                continue
            proven = role is not None and role.holds(
                challenge=challenges[node], run=run, node=node, verifying_key=self._pinned.verifying
            )
            if role is not None:
                self._mix_nodes |= {node}
            if role is not None and (not proven or role.public_key != self._pinned.sealing):
                _log.warning(
                    "shuffle: node %d says that it is a mix node and has not proven to be the pinned one: "
                    "ignored. If it is yours, compare its public key (shuffle-plugins keys public FILE)",
                    node,
                )
                role = None
            roles[node] = role
        return roles

    def _note_bad(
        self, bad: Mapping[int, Refusal], rejected: Mapping[int, Refusal], *, nodes: Sequence[int]
    ) -> None:
        """Log whose envelopes were dropped, and no longer invite nodes that never send a good one.

        Args:
            bad: why an envelope was dropped here, by node.
            rejected: why the mixer dropped an envelope, by position.
            nodes: whose envelope was at each position.
        """
        found = {**bad, **{nodes[position]: code for position, code in rejected.items()}}
        by_code = defaultdict(list)
        for node, code in found.items():
            by_code[code].append(node)
        for code, those in by_code.items():
            _log.warning("shuffle: %d envelopes dropped (%s), of nodes %s", len(those), code, _named(those))
        good = [node for node in nodes if node not in found]
        if not good or self._exclude_after is None:
            return  # if nobody's envelope was good, the fault may lie elsewhere
        for node in good:
            self._bad_rounds.pop(node, None)
        self._bad_rounds.update(found.keys())
        gone = {node for node in found if self._bad_rounds[node] >= self._exclude_after}
        if gone:
            _log.warning(
                "shuffle: nodes %s sent no good envelope in %d rounds and are not invited any more",
                _named(gone),
                self._exclude_after,
            )
        self._offenders |= gone


def _named(nodes: Iterable[int]) -> str:
    names = [str(node) for node in sorted(nodes)]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _payload(reply: Message) -> bytes:
    try:
        return payload_of(reply)
    except ValueError:
        return b""


def _role(content: RecordDict, node: int) -> MixerRole | None:
    """The role that a node claims; None for a client.

    Raises:
        BatchRefused: if it is meant to be the mix node and cannot work; the log says so.
    """
    try:
        code = refusal_in(content)
        if code in (Refusal.MISCONFIGURED, Refusal.WRONG_VERSION):
            _log.warning("shuffle: node %d is to be the mix node and cannot work: see its own log", node)
            raise BatchRefused(code)
        return None if code is not None else MixerRole.from_content(content)
    except WrongVersionError as error:
        _log.warning("shuffle: node %d says that it is a mix node of %s", node, error)
        raise BatchRefused(Refusal.WRONG_VERSION) from None
    except BatchRefused:
        raise
    except ValueError:
        return None


def _read(content: RecordDict, request: MixRequest, *, verifying_key: bytes) -> MixedBatch:
    """The batch in a mixer's answer. An answer that cannot be read counts as lost: it may have held one."""
    try:
        return read_answer(content, request=request, verifying_key=verifying_key)
    except BatchRefused:
        raise
    except ValueError:
        raise BatchRefused(Refusal.NO_ANSWER) from None
