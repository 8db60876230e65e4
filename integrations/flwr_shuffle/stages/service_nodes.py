"""The server's side of service nodes: it finds them by pinned keys, asks them, and notes who sends bad
envelopes.

The server pins the public key of each mix node or aggregator, and accepts a node only if it proves that it
holds the key.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from typing_extensions import override

from flwr_shuffle.grids import Waiting
from flwr_shuffle.messages import payload_of
from flwr_shuffle.service_messages import (
    NO_HANDLER,
    Answer,
    NodeRole,
    Role,
    RoleQuestion,
    ServiceMessage,
    refusal_in,
)
from flwr_shuffle.stages.stage import Replies, ShuffleStage
from flwr_shuffle.wire import WrongVersionError
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import BatchRefused, Refusal
from shuffle_plugins.shuffler.keys import ServicePublicKey
from shuffle_plugins.shuffler.service import CHALLENGE_BYTES

_log = logging.getLogger("flwr")

_LONGEST_PAUSE = 8.0  # seconds; the pause between two looks for nodes doubles each time, up to this
_NAMED = 10  # how many nodes a line of the log names


class ServiceStage(ShuffleStage):
    """A stage whose work is done by nodes of other organisations, one for each public key that is pinned.

    A node that says that it has the role, without a proof, is named in the log and is not used as a client. A
    node that was restarted has a new id in Flower, and the old id counts as connected for a while. So if two
    nodes have proven that they hold the same key, both are asked again, and the one that answers is taken.

    Args:
        pinned: the public keys, in the order in which the nodes are asked.
        minimum: fewest reports that are given out, or added up, together. A node's own minimum applies if it
            is larger.
        exclude_after: how many rounds in a row a node may answer without a good envelope, while other nodes'
            envelopes were good, until it is not invited any more; None never excludes a node.
        waiting: how long to wait for the nodes.
    """

    role: ClassVar[Role]

    def __init__(
        self,
        pinned: Sequence[ServicePublicKey],
        *,
        minimum: int,
        exclude_after: int | None,
        waiting: Waiting | None,
    ) -> None:
        self._pinned = tuple(pinned)
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        if exclude_after is not None:
            checks.whole("exclude_after", exclude_after)
        self._exclude_after = exclude_after
        self._waiting = waiting or Waiting()
        # by node id: position of the pinned key that it has proven to hold, and its role; None for others
        self._known: dict[int, tuple[int, NodeRole] | None] = {}
        self._found: dict[int, NodeRole] = {}
        self._claimed: frozenset[int] = frozenset()
        self._bad_rounds: Counter[int] = Counter()
        self._gone: frozenset[int] = frozenset()

    @property
    @override
    def minimum(self) -> int:
        return max([self._minimum, *(role.minimum for role in self._found.values())])

    @property
    @override
    def excluded_nodes(self) -> frozenset[int]:
        """Nodes that ever said that they have the role, and those that never sent a good envelope."""
        return self._claimed | self._gone

    @override
    def open(self, grid: Grid) -> None:
        """Find the nodes. Each node is asked only once, so this is fast if no node has joined since."""
        deadline = time.monotonic() + self._waiting.discovery_timeout
        pause = self._waiting.poll_interval
        while True:
            connected = dict.fromkeys(grid.get_node_ids())
            self._known |= self._roles(grid, [node for node in connected if node not in self._known])
            holders = self._holders(connected)
            twice = [node for nodes in holders if len(nodes) > 1 for node in nodes]
            if twice:
                self._known |= dict.fromkeys(twice) | self._roles(grid, twice)
                holders = self._holders(connected)
            for nodes in holders:
                if len(nodes) > 1:
                    raise RuntimeError(
                        f"nodes {named(nodes)} all hold the {self.role}'s private keys: stop all but one. "
                        "If you did not start them, the keys are stolen: make new ones"
                    )
            if all(holders):
                break
            if time.monotonic() >= deadline:
                missing = [key.hex() for key, nodes in zip(self._pinned, holders, strict=True) if not nodes]
                which = f" {', '.join(missing)}" if len(holders) > 1 else ""
                raise RuntimeError(
                    f"no {self.role.node} with the pinned keys{which} is connected. Start a SuperNode with "
                    f'shuffle-role="{self.role}" and its files in --node-config, and let the client app call '
                    f"{self.role.registered_by}(app); if one runs, see its log and the warnings above"
                )
            self._known = {node: found for node, found in self._known.items() if node not in self._claimed}
            time.sleep(pause)
            pause = min(2 * pause, max(_LONGEST_PAUSE, self._waiting.poll_interval))
        before, self._found = self._found, {}
        for key, [node] in zip(self._pinned, holders, strict=True):
            _, self._found[node] = cast(tuple[int, NodeRole], self._known[node])
            if before.get(node) != self._found[node]:
                _log.info("shuffle: %s %d, public key %s", self.role.node, node, key.hex())
        self._known = dict.fromkeys(connected) | self._known

    def _opened(self, grid: Grid) -> list[int]:
        """Ids of the nodes, in order. If one is not found the round is refused, and the run goes on."""
        try:
            self.open(grid)
        except RuntimeError as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_THIS_ROLE) from None
        return list(self._found)

    def _forget(self) -> None:
        """Forget which role each node has, so that all are asked again."""
        self._known.clear()

    def _holders(self, connected: Iterable[int]) -> list[list[int]]:
        """For each pinned key the connected nodes that have proven that they hold it."""
        holders: list[list[int]] = [[] for _ in self._pinned]
        for node in connected:
            if (found := self._known.get(node)) is not None:
                holders[found[0]].append(node)
        return holders

    def _roles(self, grid: Grid, nodes: Sequence[int]) -> dict[int, tuple[int, NodeRole] | None]:
        """Ask nodes for their role: return the position of the pinned key that each has proven to hold.

        The value is None for a node that has not proven it. Nodes that do not answer are left out, and so are
        nodes that answer with an error: this may be an app without the role, or a service node whose process
        failed.
        """
        if not nodes:
            return {}
        challenges = {node: secrets.token_bytes(CHALLENGE_BYTES) for node in nodes}
        questions = [
            Message(RoleQuestion(challenge=challenge).to_content(), node, self.role.question)
            for node, challenge in challenges.items()
        ]
        run, found = str(grid.run.run_id), dict[int, tuple[int, NodeRole] | None]()
        replies = list(grid.send_and_receive(questions, timeout=self._waiting.answer_timeout))
        # A single node may lie, and must not end a run: all that are connected were asked now, and say so.
        alone = not self._found and not self._known and len(replies) == len(nodes)
        if alone and all(self._is_unregistered(reply) for reply in replies):
            raise RuntimeError(
                f"no node can be the {self.role.node}: the client app, which all nodes run, "
                f"does not call {self.role.registered_by}(app). Call it where the app is made"
            )
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error() or node not in challenges:
                continue
            try:
                role = self._claim(reply.content, node)
            except BatchRefused:
                continue
            found[node] = None
            if role is None:
                continue
            self._claimed |= {node}
            told: dict[str, Any] = {"role": self.role, "challenge": challenges[node], "node": node}
            for position, key in enumerate(self._pinned):
                if role.public_key == key.sealing and role.holds(
                    **told, run=run, verifying_key=key.verifying
                ):
                    found[node] = (position, role)
            if found[node] is None:
                _log.warning(
                    "shuffle: node %d says that it is %s and has not proven to be %s: ignored. If it is "
                    "yours, compare its public key (shuffle-plugins keys public FILE)",
                    node,
                    self.role.a_node,
                    "the pinned one" if len(self._pinned) == 1 else "a pinned one",
                )
        return found

    def _is_unregistered(self, reply: Message) -> bool:
        """Whether a node's app has no function that answers which role it has."""
        found = NO_HANDLER.search(reply.error.reason or "") if reply.has_error() else None
        return found is not None and f"query.{found[1]}" == self.role.question

    def _claim(self, content: RecordDict, node: int) -> NodeRole | None:
        """The role that a node claims; None for a client, a refusal for a node that cannot work."""
        try:
            code = refusal_in(content)
            if code not in (Refusal.MISCONFIGURED, Refusal.WRONG_VERSION):
                return None if code is not None else NodeRole.from_content(content)
        except WrongVersionError as error:
            _log.warning("shuffle: node %d says that it is %s of %s", node, self.role.a_node, error)
            raise BatchRefused(Refusal.WRONG_VERSION) from None
        except ValueError:
            return None
        _log.warning(
            "shuffle: node %d is to be the %s and cannot work: see its own log", node, self.role.node
        )
        raise BatchRefused(code)

    def _asked(
        self,
        replies: Replies,
        requests: Mapping[int, ServiceMessage],
        read: Callable[[int, RecordDict], Answer],
    ) -> dict[int, Answer | BatchRefused]:
        """What some nodes answer.

        An answer that is lost, or cannot be read, may have held a batch or a sum that somebody else can
        read, so its round still has to be charged: NO_ANSWER.

        Args:
            replies: of the round.
            requests: what each node is asked, by its id.
            read: reads the answer of a node.
        """
        seconds = self._waiting.work_timeout
        if replies.timeout is not None:
            seconds = min(seconds, replies.timeout)
        messages = [Message(request.to_content(), node, self.role.work) for node, request in requests.items()]
        received = {
            reply.metadata.src_node_id: reply
            for reply in replies.grid.send_and_receive(messages, timeout=seconds)
        }
        found: dict[int, Answer | BatchRefused] = {}
        for node in requests:
            reply = received.get(node)
            try:
                if reply is None or reply.has_error():
                    raise BatchRefused(Refusal.NO_ANSWER)
                found[node] = read(node, reply.content)
            except BatchRefused as refused:
                found[node] = refused
            except ValueError:
                found[node] = BatchRefused(Refusal.NO_ANSWER)
            answer = found[node]
            if answer.rejected:
                dropped = len(answer.rejected)
                _log.warning("shuffle: %s %d dropped envelopes: %d", self.role.node, node, dropped)
            if isinstance(answer, BatchRefused):
                _log.error("shuffle: %s %d: %s", self.role.node, node, answer)
                if answer.code in (Refusal.NO_ANSWER, Refusal.NOT_PROVEN):
                    self._forget()  # and look for the nodes again
        return found

    def _note(
        self, bad: Mapping[int, Refusal], rejected: Mapping[int, Refusal], *, nodes: Sequence[int]
    ) -> None:
        """Log whose envelopes of a round were dropped, and exclude nodes that only ever sent bad ones.

        Args:
            bad: why the server dropped an envelope, by the id of the node that sent it.
            rejected: why a service node dropped an envelope, by its position in ``nodes``.
            nodes: ids of the nodes whose envelopes the service node got, in the order of the envelopes.
        """
        found = {**bad, **{nodes[position]: code for position, code in rejected.items()}}
        by_code = defaultdict(list)
        for node, code in found.items():
            by_code[code].append(node)
        for code, those in by_code.items():
            nodes_text = "node" if len(those) == 1 else "nodes"
            _log.warning("shuffle: envelopes dropped (%s), of %s %s", code, nodes_text, named(those))
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
                named(gone),
                self._exclude_after,
            )
        self._gone |= gone


def named(nodes: Iterable[int]) -> str:
    """Node ids as text for a line of the log: the first ten, and how many more there are."""
    names = [str(node) for node in sorted(nodes)]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def payload_or_nothing(reply: Message) -> bytes:
    """The payload of a reply; empty if it has none."""
    try:
        return payload_of(reply)
    except ValueError:
        return b""
