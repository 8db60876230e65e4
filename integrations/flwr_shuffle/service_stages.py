"""Stages whose work is done by nodes of other organisations: mix nodes, which shuffle, and aggregators."""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, cast

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from typing_extensions import override

from flwr_shuffle.grids import (
    NO_HANDLER,
    Anonymous,
    Replies,
    Series,
    ShuffleStage,
    Total,
    Waiting,
    kept_in,
    readable_reports,
)
from flwr_shuffle.messages import (
    AggregateRequest,
    Answer,
    Instruction,
    MixMessage,
    NodeRole,
    Role,
    RoleQuestion,
    ServiceRequest,
    SharedTerms,
    Step,
    WrongVersionError,
    context_of,
    digest_of,
    payload_of,
    refusal_in,
)
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.secure_aggregation import (
    CheckFailed,
    Residues,
    RoundVerifier,
    SumTerms,
    VerifiedTerms,
    commitment,
    sealed_seed_size,
)
from shuffle_plugins.secure_aggregation.prio3 import VerificationError
from shuffle_plugins.secure_aggregation.sharing import reconstruct, windowed
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, MixedStatement, Refusal, RoundContext, keys
from shuffle_plugins.shuffler.envelopes import envelope_size, open_reports, part_sizes
from shuffle_plugins.shuffler.keys import SealingKey, ServicePublicKey
from shuffle_plugins.shuffler.service import CHALLENGE_BYTES

_log = logging.getLogger("flwr")

_READ_AT_ONCE = 64  # shares of a sum: a few MB
_LONGEST_PAUSE = 8.0  # seconds; the pause between two looks for nodes doubles each time, up to this


class NodesNotFound(RuntimeError):
    """The nodes of a stage are not connected, or cannot be told apart; says what to do."""


class ServiceStage(ShuffleStage):
    """A stage whose work is done by nodes of other organisations, one for each public key that is pinned.

    A node must prove that it holds its key; one that claims the role without a proof is no client either. A
    node that was restarted has a new id in Flower, and the old one counts as connected for a while: if two
    have proven that they hold one key, both are asked again.
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
        self._run: int | None = None
        self._forget()

    def _forget(self) -> None:
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
    def excluded_nodes(self) -> frozenset[int]:  # they said that they have the role, or sent nothing good
        return self._claimed | self._gone

    @override
    def open(self, grid: Grid) -> None:
        if grid.run.run_id != self._run:
            self._forget()
            self._run = grid.run.run_id
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
                    raise NodesNotFound(
                        f"nodes {named(nodes)} all hold the {self.role}'s private keys: stop all but one. "
                        "If you did not start them, the keys are stolen: make new ones"
                    )
            if all(holders):
                break
            if time.monotonic() >= deadline:
                missing = [key.hex() for key, nodes in zip(self._pinned, holders, strict=True) if not nodes]
                which = f" {', '.join(missing)}" if len(holders) > 1 else ""
                raise NodesNotFound(
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
        """Ids of the nodes, in order; if one is not found the round is refused, and the run goes on."""
        try:
            self.open(grid)
        except NodesNotFound as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_THIS_ROLE) from None
        return list(self._found)

    def _holders(self, connected: Iterable[int]) -> list[list[int]]:
        """For each pinned key the connected nodes that have proven that they hold it."""
        holders: list[list[int]] = [[] for _ in self._pinned]
        for node in connected:
            if (found := self._known.get(node)) is not None:
                holders[found[0]].append(node)
        return holders

    def _roles(self, grid: Grid, nodes: Sequence[int]) -> dict[int, tuple[int, NodeRole] | None]:
        """Ask nodes for their role; None for one that has not proven to hold a pinned key. Nodes without an
        answer, or with an error, are left out: they may be service nodes whose process failed.
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
            raise NodesNotFound(
                f"no node can be the {self.role.node}: the client app, which all nodes run, "
                f"does not call {self.role.registered_by}(app). Call it where the app is made"
            )
        for reply in replies:
            node = reply.metadata.src_node_id
            if node in challenges and not reply.has_error():
                with suppress(BatchRefused):
                    found[node] = self._proven(reply.content, node, challenge=challenges[node], run=run)
        return found

    def _proven(
        self, content: RecordDict, node: int, *, challenge: bytes, run: str
    ) -> tuple[int, NodeRole] | None:
        """Which pinned key a node has proven to hold, with its role; a refusal for one that cannot work."""
        why = "see its own log"
        try:
            code, role = refusal_in(content), None
            if code is None:
                role = NodeRole.from_content(content)
        except WrongVersionError as error:
            code, why = Refusal.WRONG_VERSION, str(error)
        except ValueError:
            return None
        if code in (Refusal.MISCONFIGURED, Refusal.WRONG_VERSION):
            _log.warning("shuffle: node %d is to be the %s and cannot work: %s", node, self.role.node, why)
            raise BatchRefused(code)
        if role is None:
            return None
        self._claimed |= {node}
        told: dict[str, Any] = {"role": self.role, "challenge": challenge, "run": run, "node": node}
        for position, key in enumerate(self._pinned):
            if role.public_key == key.sealing and role.holds(**told, verifying_key=key.verifying):
                return position, role
        _log.warning(
            "shuffle: node %d says that it is a%s %s and has not proven to be a pinned one: ignored. If it "
            "is yours, compare its public key (shuffle-plugins keys public FILE)",
            *(node, "n" if self.role is Role.AGGREGATOR else "", self.role.node),
        )
        return None

    def _is_unregistered(self, reply: Message) -> bool:
        """Whether a node's app has no function that answers which role it has."""
        found = NO_HANDLER.search(reply.error.reason or "") if reply.has_error() else None
        return found is not None and f"query.{found[1]}" == self.role.question

    def _asked(
        self, replies: Replies, requests: Mapping[int, ServiceRequest]
    ) -> dict[int, Answer | BatchRefused]:
        """What nodes answer to what each is asked, by its id. One that is lost, or cannot be read, may have
        held a batch or a sum that somebody else can read: NO_ANSWER, for which the round is charged.
        """
        seconds = self._waiting.work_timeout
        if replies.timeout is not None:
            seconds = min(seconds, replies.timeout)
        messages = [Message(request.to_content(), node, self.role.work) for node, request in requests.items()]
        answers = replies.grid.send_and_receive(messages, timeout=seconds)
        received = {reply.metadata.src_node_id: reply for reply in answers}
        pinned = dict(zip(self._found, self._pinned, strict=True))
        found: dict[int, Answer | BatchRefused] = {}
        for node, request in requests.items():
            reply = received.get(node)
            answer: Answer | BatchRefused = BatchRefused(Refusal.NO_ANSWER)
            try:
                if reply is not None and not reply.has_error():
                    answer = request.read(reply.content, verifying_key=pinned[node].verifying)
            except BatchRefused as refused:
                answer = refused
            except ValueError as error:
                _log.error("shuffle: %s %d: an answer that cannot be read: %s", self.role.node, node, error)
            found[node] = answer
            if answer.rejected:
                dropped = len(answer.rejected)
                _log.warning("shuffle: %s %d dropped envelopes: %d", self.role.node, node, dropped)
            if isinstance(answer, BatchRefused):
                _log.error("shuffle: %s %d: %s", self.role.node, node, answer)
                if answer.code in (Refusal.NO_ANSWER, Refusal.NOT_PROVEN):
                    self._known.clear()  # and look for the nodes again
        return found

    def _note(
        self, bad: Mapping[int, Refusal], rejected: Mapping[int, Refusal], *, nodes: Sequence[int]
    ) -> None:
        """Log whose envelopes were dropped, here or by position; exclude who only ever sent bad ones."""
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
    """The first ten node ids, and how many more there are."""
    names = [str(node) for node in sorted(nodes)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class MixNodeStage(ServiceStage):
    """Sends a round's envelopes through the mix node, or several, and opens the reports that come back.
    docs/guides/shuffling.md says what each party learns.

    Args:
        mixer_public_key: as ``shuffle-plugins keys mixer`` prints it: the key that clients pin. It comes from
            the mixer's operator, never from the node. For a mix cascade, all keys in the order in which the
            mixers work: a sequence of strings, or one string with commas between the keys.
        minimum: fewest reports that a mixer may give out together, at least 2; the mixer's own if larger.
        analyzer_private_key: opens the shuffled reports; a new one unless another process must read them too.
        exclude_after: a node that answered this many rounds in a row, and never with a good envelope, is not
            invited any more; None never excludes one. A round counts only if others' envelopes were good.
        piece_bytes: a larger batch is sent in several messages (pieces) of about this many bytes.
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

    @override
    def _forget(self) -> None:
        super()._forget()
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
        if self._wrong_order and grid.run.run_id == self._run:
            raise NodesNotFound(
                "the mixers of the cascade have refused everything: server, mixers and clients do not name "
                "the same mixers in the same order. mixer_public_key of the server's MixNodeStage must list "
                "the keys as shuffle-mixer-public-key does in the node_config of every mixer and client. If "
                "they are the same, see the mixers' own logs"
            )
        super().open(grid)

    @override
    def collect(self, replies: Replies) -> Anonymous:
        instruction = replies.instruction
        several = instruction.reports_per_client
        size = envelope_size(replies.layout.report_bytes, mixers=self.mixers, reports=several)
        payloads = {reply.metadata.src_node_id: payload_of(reply) for reply in replies.answers}
        envelopes = {node: payload for node, payload in payloads.items() if len(payload) == size}
        bad = dict.fromkeys(payloads.keys() - envelopes.keys(), Refusal.WRONG_SIZE)
        unreadable = len(payloads) - len(envelopes)
        context = context_of(instruction, dim=replies.dim)
        needed = max(self.minimum, instruction.minimum)
        try:
            if len(envelopes) < max(needed, self.fewest_answers):
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
            # they were mixed and opened, and may be whole reports of another version: the round is charged
            refusal=Refusal.NO_REPORT if reports is None else None,
        )

    def _mixed(
        self, envelopes: list[bytes], *, context: RoundContext, replies: Replies
    ) -> tuple[list[bytes], MixedStatement]:
        """What the last mixer gives back, and what the first, which drops bad envelopes, has signed."""
        sizes = part_sizes(replies.layout.report_bytes, mixers=self.mixers, reports=context.reports)
        ends = list(accumulate(sizes, initial=0))
        # the layers for the first mixer, and the tickets of each later one
        parts = [[each[start:end] for each in envelopes] for start, end in pairwise(ends)]
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
                minimum=self._minimum,
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
        number, most = (max(1, self._piece_bytes // size) for size in (request.size, request.output_size))
        said, first, taken = None, 0, list[bytes]()
        while said is None:
            piece = MixMessage(request=request, first=first, items=items[first : first + number], most=most)
            answer = self._answer(piece, node=node, replies=replies)
            said, taken = answer.said, list(answer.items)
            first += number
        while left := said.count - len(taken):
            wanted = MixMessage(request=request, first=len(taken), most=min(most, left))
            try:
                taken += self._answer(wanted, node=node, replies=replies).items
            except BatchRefused as refused:  # the batch is mixed, and part of it is here: it is charged
                raise BatchRefused(Refusal.NO_ANSWER) from refused
        try:
            request.check_outputs(taken, said=said)
        except BatchRefused as refused:
            self._known.clear()
            _log.error("shuffle: node %d: %s", node, refused)
            raise
        return taken, said

    def _answer(self, asked: MixMessage, *, node: int, replies: Replies) -> Answer:
        answer = self._asked(replies, {node: asked})[node]
        if isinstance(answer, BatchRefused):
            raise answer
        return answer


class SharedSumStage(ServiceStage):
    """Adds up counts, such as a ``VectorSum``'s, that neither the server nor any aggregator sees.
    docs/guides/shuffling.md says what each party learns and how.

    Args:
        aggregator_public_keys: as ``shuffle-plugins keys aggregator`` prints them: the keys that clients pin,
            in the same order. They come from the aggregators' operators.
        minimum: fewest clients whose counts are added up, at least 2; an aggregator's own if larger.
        verified: whether clients prove that their counts are within the mechanism's bounds, by Prio3 of
            draft-irtf-cfrg-vdaf; those whose proofs do not hold are left out (docs/guides/range-proofs.md).
        exclude_after: as of :class:`MixNodeStage`.
        share_folder: of the nameless temporary file that holds all shares of a round; by default the
            system's. If that is in memory, as a tmpfs is, name a folder on a disk.
        window_folder: of nameless temporary files that hold what this server keeps of a series of windows,
            of a ``WindowedSum``: 2·(b − 1) vectors. By default they are in memory.
    """

    role = Role.AGGREGATOR
    adds_up = True
    hides_shares = True

    def __init__(
        self,
        *,
        aggregator_public_keys: Sequence[str],
        minimum: int = 2,
        verified: bool = False,
        exclude_after: int | None = 3,
        share_folder: Path | str | None = None,
        window_folder: Path | str | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        if isinstance(aggregator_public_keys, str) or not aggregator_public_keys:
            raise ValueError("aggregator_public_keys is a list of at least one key")
        pinned = [keys.parse_mixer_public_key(text) for text in aggregator_public_keys]
        self._keys = tuple(key.sealing for key in pinned)
        if len(set(self._keys)) < len(self._keys):
            raise ValueError("an aggregator's key is there twice: each must be another organisation's")
        super().__init__(pinned, minimum=minimum, exclude_after=exclude_after, waiting=waiting)
        self._verified = verified
        self._share_folder, self.window_folder = share_folder, window_folder
        self._coming: _Shares | None = None

    @property
    @override
    def trust(self) -> str:
        who, see = ("aggregators", "see") if len(self._keys) > 1 else ("aggregator", "sees")
        liars = (
            "a client that lies can move the sum by no more than the bounds of its counts, or else is left "
            "out; an aggregator that lies can move the sum by as much as all clients together."
            if self._verified
            else "a client that lies about its counts can move the sum as far as it likes, or make a round "
            "be refused, and nobody can tell which client it was."
        )
        return (
            f"The server sees the total alone and the {who} {see} no counts: all of them together could see "
            f"each client's, so at least one of server and {who} must not work with the others; {liars}"
        )

    @override
    def shared(self, mechanism: PrivateSum, *, clients: int) -> SharedTerms:
        if mechanism.counts is None:
            raise ValueError(
                f"reports of {mechanism.name!r} are no whole numbers that a SharedSumStage could add up; it "
                "takes sums such as VectorSum and BallSum"
            )
        check_seed, series = secrets.token_bytes(32), self.series
        if isinstance(mechanism, WindowedSum) and series is not None:
            check_seed, clients = series.check_seed, series.clients
        return SharedTerms(
            check_seed=check_seed,
            aggregators=digest_of(self._keys),
            clients=clients,
            verified=self._verified,
        )

    @override
    def take(self, reply: Message, *, instruction: Instruction, dim: int) -> Message:
        """Write a client's share to a file; if it cannot be written, the round stays charged."""
        light = copy(reply)
        light.content = RecordDict()
        try:
            with kept_in(self._share_folder or tempfile.gettempdir(), "the clients' shares (share_folder=…)"):
                self._begun(instruction, dim).put(light, payload_of(reply))
        except OSError:
            self._drop()
            raise
        return light

    def _begun(self, instruction: Instruction, dim: int) -> _Shares:
        if self._coming is None or self._coming.instruction != instruction:
            self._drop()
            mechanism, shared = instruction.mechanism.build(dim=dim), instruction.shared
            if shared is None:
                raise ValueError("the clients of this round were not told to share their counts")
            terms = shared.of_round(instruction, mechanism, dim=dim, aggregators=self._keys)
            if instruction.window and (self.series is None or self.series.place != instruction.window):
                raise ValueError("these clients were told another window than the next one")
            file = tempfile.TemporaryFile(dir=self._share_folder)  # noqa: SIM115  (closed by collect or _drop)
            self._coming = _Shares(instruction, mechanism, terms, file)
        return self._coming

    def _drop(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            with suppress(OSError):  # a full disk: what is not written yet is not wanted
                coming.file.close()

    @override
    def collect(self, replies: Replies) -> Anonymous:
        batch, self._coming = self._begun(replies.instruction, replies.dim), None
        with batch.file:
            nodes = batch.complete(replies)
            foreign = len(batch.bad)  # what an aggregator calls bad may be good
            try:
                total = self._added_up(batch, replies)
            except BatchRefused as refused:
                return replies.anonymous(
                    None,
                    answered=len(nodes) - len(batch.bad),
                    unreadable=len(batch.bad),
                    foreign=foreign,
                    refusal=refused.code,
                )
            finally:
                # An aggregator's word is enough to invite a node no more. Only aggregators can tell who is
                # not enrolled, and only with their shares does the server see that a proof fails; such a
                # node would take an honest client's place in every round. An aggregator that lies wins
                # nothing by it: it can leave the same clients out of every sum.
                self._note(batch.bad, {}, nodes=nodes)
        return replies.anonymous(None, answered=total.reports, unreadable=len(batch.bad), total=total)

    def _added_up(self, batch: _Shares, replies: Replies) -> Total:
        """The estimate of the sum of those clients whom all aggregators called good, and then added up."""
        terms, verifier = batch.terms, None
        if isinstance(terms, VerifiedTerms):
            verifier = RoundVerifier[int](terms)
            batch.proven(verifier.start, ((each, batch.share(each)) for each in range(len(batch.nodes))))
        asked = batch.good(range(len(batch.nodes)))
        self._check_enough(asked, terms)
        key = verifier.verify_key if verifier else b""
        answers, refusals = self._asked_about(batch, replies, Step.CHECK, asked, verify_key=key)
        if refusals:  # nobody was asked for a sum; but a round that was begun before may have given one
            codes = {refused.code for refused in refusals}
            telling = (Refusal.REPLAYED, Refusal.NOT_IN_SERIES, Refusal.UNDER_MINIMUM)
            known = [code for code in telling if code in codes]
            if Refusal.NOT_IN_SERIES in codes:
                self._log_end(self.series)
                self.series = None
            raise BatchRefused(known[0] if known else Refusal.NOT_AGREED)
        kept, messages = batch.good(asked), list[bytes]()
        if verifier:
            said = []  # by aggregator: its verifier share of each client that it found good
            for answer in answers:
                found = [position for place, position in enumerate(asked) if place not in answer.rejected]
                said.append(dict(zip(found, answer.shares, strict=True)))
            decided = ((position, [shares[position] for shares in said]) for position in kept)
            messages = batch.proven(verifier.decide, decided)
            kept = batch.good(kept)
        self._check_enough(kept, terms)
        # From here on an aggregator may have opened the window: unless all have, it is never the next again.
        series = self.series if terms.window else None
        if series is not None:
            self.series = None
        try:
            answers, refusals = self._asked_about(batch, replies, Step.ADD, kept, messages=messages)
            if refusals:  # of an aggregator that proves that it gave nothing, no total can be made
                raise min(refusals, key=lambda refused: not refused.code.conclusive)
            total = self._total(batch, kept, [answer.total for answer in answers], verifier, series)
        except BatchRefused:
            self._log_end(series)
            raise
        self.series = series or self.series
        return total

    def _total(
        self,
        batch: _Shares,
        kept: Sequence[int],
        sums: Sequence[bytes],
        verifier: RoundVerifier[int] | None,
        series: Series | None,
    ) -> Total:
        """The estimate of a sum from the aggregators' sums, or windows, and this server's shares."""
        terms, mechanism, shared = batch.terms, batch.mechanism, batch.instruction.shared
        assert mechanism.counts is not None
        assert shared is not None
        lowest, reports, own = mechanism.counts.lowest, len(kept), terms.layout.zero()
        most = reports * (mechanism.counts.highest - lowest) if series is None else series.largest(reports)
        earlier = () if series is None else series.shares
        try:
            if verifier:
                total = verifier.total(sums, earlier=earlier)
            else:
                for place in range(0, len(kept), _READ_AT_ONCE):
                    shares = map(batch.share, kept[place : place + _READ_AT_ONCE])
                    own.add(Residues.from_bytes(*shares, layout=terms.layout))
                data, *coins = own.split()
                if terms.window is not None:
                    own = windowed([data, *earlier], *coins, coefficients=terms.window.coefficients)
                found = [Residues.from_bytes(each, layout=terms.opened) for each in sums]
                total = reconstruct([own], found, layout=terms.opened, check_seed=shared.check_seed)
            if int(total.max()) > most:
                raise CheckFailed
        except CheckFailed as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.INCONSISTENT) from None
        counts = torch.from_numpy(total)
        if series is None:
            return Total(sum=mechanism.estimate(counts + reports * lowest, reports=reports), reports=reports)
        mine: Any = series.kept(verifier.data) if verifier else replace(data, counts=series.kept(data.counts))
        series.shares.appendleft(mine)
        return series.solve(counts, reports=reports)

    def _log_end(self, series: Series | None) -> None:
        """Say that the next window begins a new series."""
        if series is not None:
            _log.warning(
                "shuffle: a series of windows ends after %d of them; the next round begins a new one, whose "
                "windows take back nothing of the noise that there is by now",
                series.index,
            )

    def _check_enough(self, kept: Sequence[int], terms: SumTerms) -> None:
        needed = max(self.minimum, self.fewest_answers, terms.context.minimum)
        if len(kept) < needed:
            raise BatchRefused(Refusal.UNDER_MINIMUM)

    def _asked_about(
        self, batch: _Shares, replies: Replies, step: Step, kept: Sequence[int], **fields: Any
    ) -> tuple[list[Answer], list[BatchRefused]]:
        """Each aggregator's answer about some clients' seeds, and why some gave none."""
        nodes = self._opened(replies.grid)
        requests = batch.requests(step, kept, minimum=self._minimum, **fields)
        answers = self._asked(replies, dict(zip(nodes, requests, strict=True))).values()
        for answer in answers:
            batch.bad |= {batch.nodes[kept[place]]: code for place, code in answer.rejected.items()}
        return (
            [answer for answer in answers if isinstance(answer, Answer)],
            [answer for answer in answers if isinstance(answer, BatchRefused)],
        )


class _Part(NamedTuple):
    """What stays in memory of a reply: where its share begins in the file, its digest, the sealed seeds."""

    start: int
    commitment: bytes
    envelopes: bytes


@dataclass
class _Shares:
    """The shares of a round, in a file, and what else came with them.

    ``parts`` has what the grid keeps of a reply, by its ``id``, with the rest of the reply, or None for a
    wrong length. Once the round is complete, ``nodes`` has who sent the right length, ``sent`` what they
    sent, and ``bad`` why a reply is left out, by its node.
    """

    instruction: Instruction
    mechanism: PrivateSum
    terms: SumTerms
    file: IO[bytes]
    parts: dict[int, tuple[Message, _Part | None]] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    sent: list[_Part] = field(default_factory=list)
    bad: dict[int, Refusal] = field(default_factory=dict)

    def put(self, kept: Message, payload: bytes) -> _Part | None:
        terms, part = self.terms, None
        first = terms.share_bytes
        if len(payload) == first + len(terms.aggregators) * sealed_seed_size(terms.secret_bytes):
            share = payload[:first]
            start = self.file.seek(0, 2)
            self.file.write(share)
            part = _Part(start, commitment(share), payload[first:])
        self.parts[id(kept)] = (kept, part)  # holds the message, so that its id is not used again
        return part

    def complete(self, replies: Replies) -> list[int]:
        """Note which replies count, put those that never went here, and return who sent them."""
        for reply in replies.answers:
            node = reply.metadata.src_node_id
            _, part = self.parts.get(id(reply)) or (reply, self.put(reply, payload_of(reply)))
            if part is None:
                self.bad[node] = Refusal.WRONG_SIZE
            else:
                self.nodes.append(node)
                self.sent.append(part)
        return [reply.metadata.src_node_id for reply in replies.answers]

    def good(self, positions: Sequence[int]) -> list[int]:
        return [position for position in positions if self.nodes[position] not in self.bad]

    def proven(self, verify: Callable[[int, Any], Any], proofs: Iterable[tuple[int, Any]]) -> list[Any]:
        """What ``verify`` makes of clients' parts of their proofs; those that it refuses are bad."""
        found = []
        for position, part in proofs:
            try:
                found.append(verify(position, part))
            except VerificationError:
                self.bad[self.nodes[position]] = Refusal.PROOF_REFUSED
        return found

    def share(self, position: int) -> bytes:
        self.file.seek(self.sent[position].start)
        return self.file.read(self.terms.share_bytes)

    def requests(self, step: Step, kept: Sequence[int], **fields: Any) -> list[AggregateRequest]:
        """What each aggregator is asked about the replies at some positions."""
        size = sealed_seed_size(self.terms.secret_bytes)
        return [
            AggregateRequest(
                terms=self.terms,
                step=step,
                commitments=[self.sent[position].commitment for position in kept],
                envelopes=[self.sent[position].envelopes[start : start + size] for position in kept],
                **fields,
            )
            for start in range(0, size * len(self.terms.aggregators), size)
        ]
