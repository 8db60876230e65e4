"""The server's side of a shared sum: it relays sealed seeds to aggregators, and puts the total together."""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_shuffle.aggregate_messages import (
    AGGREGATE_QUERY,
    AggregateRequest,
    Step,
    read_checked,
    read_sum,
    read_verified,
    read_verified_sum,
)
from flwr_shuffle.messages import Instruction, context_of
from flwr_shuffle.service_messages import Role, envelopes_text
from flwr_shuffle.shared_terms import SharedTerms, digest_of
from flwr_shuffle.stages.service_nodes import (
    Offenders,
    ServiceNodes,
    Waiting,
    payload_or_nothing,
    read_or_lost,
)
from flwr_shuffle.stages.stage import Anonymous, Replies, ShuffleStage, Total
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import CountRange, PrivateSum
from shuffle_plugins.secure_aggregation import (
    Answers,
    CheckFailed,
    Expanded,
    Residues,
    RoundVerifier,
    SumTerms,
    VerifiedTerms,
    commitment,
    reconstruct,
    sealed_seed_size,
)
from shuffle_plugins.secure_aggregation.prio3 import VerificationError
from shuffle_plugins.shuffler import BatchRefused, Refusal, keys

_Answer = TypeVar("_Answer")
_LIARS = (
    "a client that lies about its counts can move the sum as far as it likes, or make a round be refused, "
    "and nobody can tell which client it was."
)
_VERIFIED_LIARS = (
    "a client that lies can move the sum by no more than the bounds of its counts, or else is left out; an "
    "aggregator that lies can move the sum by as much as all clients together."
)
_log = logging.getLogger("flwr")


class SharedSumStage(ShuffleStage):
    """Adds up counts that neither the server nor any aggregator sees.

    It is for protocols whose reports are whole numbers, such as ``VectorSum`` and ``BallSum``. The server
    learns the total and nothing else, and an aggregator learns nothing, unless the server and all aggregators
    work together. docs/guides/shuffling.md says what each party learns.

    Each client draws a random seed for each aggregator, expands each seed to a vector, and subtracts these
    expansions from its counts, mod 2^w, where w is the number of bits of one entry of a share. It sends what
    is left, its *share*, to the server. It seals each seed to one aggregator, with the key that is pinned in
    the client's own ``node_config``. The server relays the sealed seeds. Each aggregator returns the sum of
    the seeds' expansions, and the server adds these sums to the clients' shares.

    If there are several aggregators, the server first asks each which envelopes are good, and then asks for
    the sum over the envelopes that all of them found good.

    With ``verified`` each client also proves that its counts are within the bounds of the mechanism
    (``mechanism.counts``), by Prio3 of draft-irtf-cfrg-vdaf. The server and the aggregators check the proof
    together; clients whose proofs do not hold are left out and counted as unreadable. Replies are longer:
    docs/guides/range-proofs.md says by how much, and what a proof does not show.

    Args:
        aggregator_public_keys: 128 hexadecimal digits each, as ``shuffle-plugins keys aggregator`` prints
            them: the keys that clients pin, in the same order. They come from the aggregators' operators.
        minimum: fewest clients whose counts are added up, at least 2. If an aggregator's own minimum is
            larger, that one applies.
        verified: whether clients prove that their counts are within bounds.
        discovery_timeout: seconds to look for the aggregators.
        answer_timeout: seconds to wait for nodes to say whether they are an aggregator.
        sum_timeout: seconds to wait for sums, where the round's own timeout is not shorter.
        poll_interval: seconds between two looks for new nodes.
        exclude_after: a node that answered this many rounds in a row, and never with good envelopes, is not
            invited any more; None never excludes a node. A round counts only if other nodes' envelopes were
            good.
        share_folder: folder of the temporary file that holds the clients' shares until they are added up; by
            default the system's folder for temporary files. The file has no name, and is gone when the
            process ends. It needs room for all shares of a round. If the system's folder is in memory, as a
            tmpfs is, name a folder on a disk.

    Raises:
        ValueError: if an argument is out of range, or a key is there twice.
    """

    def __init__(
        self,
        *,
        aggregator_public_keys: Sequence[str],
        minimum: int = 2,
        verified: bool = False,
        discovery_timeout: float = 300.0,
        answer_timeout: float = 60.0,
        sum_timeout: float = 600.0,
        poll_interval: float = 1.0,
        exclude_after: int | None = 3,
        share_folder: Path | str | None = None,
    ) -> None:
        if isinstance(aggregator_public_keys, str) or not aggregator_public_keys:
            raise ValueError("aggregator_public_keys is a list of at least one key")
        waiting = Waiting(
            discovery_timeout=discovery_timeout,
            answer_timeout=answer_timeout,
            work_timeout=sum_timeout,
            poll_interval=poll_interval,
        )
        pinned = [keys.parse_mixer_public_key(text) for text in aggregator_public_keys]
        self._keys = tuple(key.sealing for key in pinned)
        if len(set(self._keys)) < len(self._keys):
            raise ValueError("an aggregator's key is there twice: each must be another organisation's")
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self._verified = verified
        self._offenders = Offenders(exclude_after=exclude_after)
        self._nodes = ServiceNodes(Role.AGGREGATOR, pinned=pinned, waiting=waiting)
        self._share_folder = share_folder
        self._coming: _Coming | None = None

    @property
    def trust(self) -> str:
        """One sentence: who must not work together, and what a liar can do."""
        several = len(self._keys) > 1
        return (
            "The server sees the total alone and "
            + ("the aggregators see" if several else "the aggregator sees")
            + " no counts: all of them together could see each client's, so at least one of server and "
            + ("aggregators" if several else "aggregator")
            + " must not work with the others; "
            + (_VERIFIED_LIARS if self._verified else _LIARS)
        )

    @property
    def minimum(self) -> int:
        """Fewest clients whose counts are added up: the largest of the server's and aggregators' minima."""
        return max([self._minimum, *(found.role.minimum for found in self._nodes.found)])

    @property
    def adds_up(self) -> bool:
        """True: only the sum of the reports comes out."""
        return True

    @property
    def hides_shares(self) -> bool:
        """True: the server sees no client's counts, unless all aggregators help it."""
        return True

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Ids of nodes that claimed to be an aggregator, and of nodes that never sent good envelopes."""
        return self._nodes.claimed | self._offenders.nodes

    def open(self, grid: Grid) -> None:
        """Find the aggregators; see :meth:`ServiceNodes.open`.

        Raises:
            RuntimeError: if one is not found in time, or two nodes prove that they are the same one.
        """
        self._nodes.open(grid)

    def shared(self, mechanism: PrivateSum, *, clients: int) -> SharedTerms:
        """What clients of a new round must know to split their counts; see :meth:`ShuffleStage.shared`."""
        terms = SharedTerms(
            check_seed=secrets.token_bytes(32),
            aggregators=digest_of(self._keys),
            clients=clients,
            verified=self._verified,
        )
        if mechanism.counts is None:
            raise ValueError(
                f"reports of {mechanism.name!r} are no whole numbers that a SharedSumStage could add up; it "
                "takes sums such as VectorSum and BallSum"
            )
        return terms

    def take(self, reply: Message, *, instruction: Instruction, dim: int) -> Message:
        """Write a client's share to a file, so that it need not stay in memory.

        Raises:
            OSError: if it cannot be written. The round stays charged, and nothing of it is added up.
        """
        light = copy(reply)
        light.content = RecordDict()
        try:
            self._begun(instruction, dim).put(light, payload_or_nothing(reply))
        except OSError as error:
            self._coming = None
            folder = self._share_folder or tempfile.gettempdir()
            raise OSError(
                error.errno,
                f"the clients' shares of a round cannot be kept in {folder} ({error.strerror}): make room "
                "there, or give SharedSumStage(share_folder=…). The round is charged; start again to go on",
            ) from error
        return light

    def _begun(self, instruction: Instruction, dim: int) -> _Coming:
        """The replies of this round that came so far; an empty collection if the round is a new one."""
        if self._coming is None or self._coming.instruction != instruction:
            counts, shared = instruction.mechanism.build(dim=dim).counts, instruction.shared
            if shared is None or counts is None:
                raise ValueError("the clients of this round were not told to share their counts")
            context = context_of(instruction, dim=dim)
            terms = shared.of_round(context, counts=counts, aggregators=self._keys)
            shares = tempfile.TemporaryFile(dir=self._share_folder)  # noqa: SIM115  (closed by collect)
            self._coming = _Coming(instruction, terms, shares)
        return self._coming

    def collect(self, replies: Replies) -> Anonymous:
        """Ask the aggregators for a round's sums, and compute the total; see :meth:`ShuffleStage.collect`.

        A reply of the wrong length is dropped here: it must hold a share and a sealed seed for each
        aggregator. Aggregators drop bad envelopes and say at which positions they were, so that the log can
        name the nodes.
        """
        coming, self._coming = self._begun(replies.instruction, replies.dim), None
        with coming.shares:
            return self._collected(replies, coming)

    def _collected(self, replies: Replies, coming: _Coming) -> Anonymous:
        """:meth:`collect`, while the file of shares is open."""
        instruction = replies.instruction
        mechanism = instruction.mechanism.build(dim=replies.dim)
        counts, shared, terms = mechanism.counts, instruction.shared, coming.terms
        assert counts is not None
        assert shared is not None
        payloads = {reply.metadata.src_node_id: coming.part_of(reply) for reply in replies.answers}
        sent = {node: part for node, part in payloads.items() if part is not None}
        bad = dict.fromkeys(payloads.keys() - sent.keys(), Refusal.WRONG_SIZE)
        batch = _Batch(terms=terms, nodes=tuple(sent), parts=tuple(sent.values()), shares=coming.shares)
        try:
            if isinstance(terms, VerifiedTerms):
                kept, found = self._verified_sum(terms, batch, replies, bad=bad)
            else:
                kept, expansions = self._added_up(batch, replies, bad=bad)
                found = self._total(batch, kept, expansions, counts=counts, check_seed=shared.check_seed)
        except BatchRefused as refused:
            good = len(payloads) - len(bad)
            return replies.anonymous(
                None,
                answered=good,
                unreadable=len(bad),
                foreign=len(payloads) - len(sent),  # what an aggregator calls bad may be good
                refusal=refused.code,
            )
        finally:
            self._offenders.note(bad, {}, nodes=list(payloads))
        return replies.anonymous(
            None,
            answered=len(kept),
            unreadable=len(bad),
            total=Total(
                sum=mechanism.estimate(
                    torch.from_numpy(found) + len(kept) * counts.lowest, reports=len(kept)
                ),
                reports=len(kept),
            ),
        )

    def _added_up(
        self, batch: _Batch, replies: Replies, *, bad: dict[int, Refusal]
    ) -> tuple[list[int], list[Residues]]:
        """Ask each aggregator for the sum of its seeds' expansions, all over the same clients.

        The reason why a client is left out is added to ``bad``, under the id of its node.

        Returns:
            The positions in ``batch`` of the clients that all aggregators added up, and one sum from each.

        Raises:
            BatchRefused: if the aggregators' sums are not all there, or not over the same clients.
        """
        asked = max(self._minimum, self.needed.reports)
        kept, step = list(range(len(batch.nodes))), Step.ADD
        self._check_enough(kept, batch.terms)
        if len(self._keys) > 1:
            requests = batch.requests(Step.CHECK, kept, minimum=asked)
            found, refusals = self._asked(replies, requests, read_checked)
            if refusals:  # nobody was asked for a sum
                raise BatchRefused(Refusal.NOT_AGREED)
            rejected = {position: code for each in found for position, code in each.items()}
            bad |= batch.by_node(rejected)
            kept, step = [position for position in kept if position not in rejected], Step.ADD_ALL
            self._check_enough(kept, batch.terms)
        sums, refusals = self._asked(replies, batch.requests(step, kept, minimum=asked), read_sum)
        for dropped in [*(each.rejected for each in sums), *(each.rejected for each in refusals)]:
            bad |= batch.by_node({kept[position]: code for position, code in dropped.items()})
        if refusals:
            # If any aggregator proves that it gave nothing out, its refusal is the one to report: without its
            # sum there is no total, so the round released nothing.
            raise min(refusals, key=lambda refused: not refused.code.conclusive)
        kept = [position for position in kept if batch.nodes[position] not in bad]
        try:
            self._check_enough(kept, batch.terms)
        except BatchRefused:  # the aggregator has given out a sum of fewer than everybody asked for
            _log.error("shuffle: an aggregator added up fewer clients than its minimum: %d", len(kept))
            raise BatchRefused(Refusal.INCONSISTENT) from None
        return kept, [each.total for each in sums]

    def _verified_sum(
        self, terms: VerifiedTerms, batch: _Batch, replies: Replies, *, bad: dict[int, Refusal]
    ) -> tuple[list[int], NDArray[np.int64]]:
        """Check the proofs, and ask for the sums of the clients whose proofs hold.

        The reason why a client is left out is added to ``bad``, under the id of its node.

        Returns:
            The positions in ``batch`` of these clients, and the sum of their counts, each minus the lowest
            count that the mechanism allows.

        Raises:
            BatchRefused: if there is no sum.
        """
        server, asked = RoundVerifier[int](terms), max(self._minimum, self.needed.reports)
        started = list[int]()
        for position, node in enumerate(batch.nodes):
            try:
                server.start(position, batch.share(position))
                started.append(position)
            except VerificationError:
                bad[node] = Refusal.PROOF_REFUSED
        self._check_enough(started, terms)
        requests = batch.requests(Step.VERIFY, started, minimum=asked, verify_key=server.verify_key)
        answers, refusals = self._asked(replies, requests, read_verified)
        for dropped in [*(each.rejected for each in answers), *(each.rejected for each in refusals)]:
            bad |= batch.by_node({started[place]: code for place, code in dropped.items()})
        if refusals:  # nobody was asked for a sum; but a round that was begun before may have given one
            codes = {refused.code for refused in refusals}
            known = [code for code in (Refusal.REPLAYED, Refusal.UNDER_MINIMUM) if code in codes]
            raise BatchRefused(known[0] if known else Refusal.NOT_AGREED)
        messages = dict[int, bytes]()
        for place, position in enumerate(started):
            if batch.nodes[position] in bad:
                continue
            try:
                shares = [answer.verifier_shares[place] for answer in answers]
                messages[position] = server.decide(position, shares)
            except VerificationError:
                bad[batch.nodes[position]] = Refusal.PROOF_REFUSED
        kept = list(messages)
        self._check_enough(kept, terms)
        requests = batch.requests(
            Step.ADD_VERIFIED, kept, minimum=asked, messages=[messages[position] for position in kept]
        )
        sums, refusals = self._asked(replies, requests, read_verified_sum)
        if refusals:
            raise min(refusals, key=lambda refused: not refused.code.conclusive)
        try:
            return kept, server.total(sums)
        except CheckFailed as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.INCONSISTENT) from None

    def _check_enough(self, kept: Sequence[int], terms: SumTerms) -> None:
        """Check that there are at least as many clients as every party asks for.

        Raises:
            BatchRefused: UNDER_MINIMUM, if there are not.
        """
        needed = max(self.minimum, self.needed.reports, self.needed.answered, terms.context.minimum)
        if len(kept) < needed:
            raise BatchRefused(Refusal.UNDER_MINIMUM)

    def _asked(
        self,
        replies: Replies,
        requests: Sequence[AggregateRequest],
        read: Callable[..., _Answer],
    ) -> tuple[list[_Answer], list[BatchRefused]]:
        """Send each aggregator its request; return the answers, and the reasons why some did not answer."""
        try:
            nodes = self._nodes.open(replies.grid)
        except RuntimeError as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.NOT_THIS_ROLE) from None
        messages = [
            Message(request.to_content(), found.node, AGGREGATE_QUERY)
            for request, found in zip(requests, nodes, strict=True)
        ]
        received = {
            reply.metadata.src_node_id: reply
            for reply in self._nodes.ask(replies.grid, messages, timeout=replies.timeout)
        }
        answers, refusals = [], []
        for request, found, key in zip(requests, nodes, self._nodes.pinned, strict=True):
            try:
                reply = received.get(found.node)
                if reply is None or reply.has_error():
                    raise BatchRefused(Refusal.NO_ANSWER)
                read_reply = partial(read, request=request, verifying_key=key.verifying)
                answers.append(read_or_lost(reply.content, read_reply))
                _log_dropped(found.node, _rejected_in(answers[-1]))
            except BatchRefused as refused:
                _log_dropped(found.node, refused.rejected)
                if refused.code in (Refusal.NO_ANSWER, Refusal.NOT_PROVEN):
                    self._nodes.forget()
                _log.error("shuffle: aggregator %d: %s", found.node, refused)
                refusals.append(refused)
        return answers, refusals

    def _total(
        self,
        batch: _Batch,
        kept: Sequence[int],
        expansions: Sequence[Residues],
        *,
        counts: CountRange,
        check_seed: bytes,
    ) -> NDArray[np.int64]:
        """The total of the clients' counts, int64 (counts.size,), each count minus the lowest possible one.

        Raises:
            BatchRefused: INCONSISTENT, if the total does not fit its check words, or is more than so many
                clients can have.
        """
        layout = batch.terms.layout
        try:
            shares = (Residues.from_bytes(batch.share(position), layout=layout) for position in kept)
            found = reconstruct(shares, expansions, layout=layout, check_seed=check_seed)
        except CheckFailed as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.INCONSISTENT) from None
        if int(found.max()) > len(kept) * (counts.highest - counts.lowest):
            _log.error("shuffle: the total is more than its clients' counts can be")
            raise BatchRefused(Refusal.INCONSISTENT)
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What stays in memory of a client's reply.

    Attributes:
        start: where the client's share begins in the file of shares.
        commitment: digest of the share, 32 bytes.
        envelopes: the seeds that the client sealed, one for each aggregator, one after another.
    """

    start: int
    commitment: bytes
    envelopes: bytes


@dataclass(slots=True)
class _Coming:
    """The replies of a round that is under way.

    Attributes:
        instruction: the instruction that the clients were sent.
        terms: which round it is, and how its counts are shared.
        shares: the file that holds the shares, of all replies of the right length.
        parts: by ``id`` of the message that the grid keeps of a reply: that message, and the rest of the
            reply. The rest is None if the reply had the wrong length.
    """

    instruction: Instruction
    terms: SumTerms
    shares: IO[bytes]
    parts: dict[int, tuple[Message, _Part | None]] = field(default_factory=dict)

    def put(self, kept: Message, payload: bytes) -> _Part | None:
        """Write a reply's share to the file, and remember the rest of the reply.

        Args:
            kept: the message that the grid keeps in place of the reply.
            payload: what the client sent.

        Returns:
            The rest; None if the payload has the wrong length.
        """
        terms, part = self.terms, None
        first = terms.share_bytes
        if len(payload) == first + len(terms.aggregators) * sealed_seed_size(terms.secret_bytes):
            share = payload[:first]
            start = self.shares.seek(0, 2)
            self.shares.write(share)
            part = _Part(start, commitment(share), payload[first:])
        self.parts[id(kept)] = (kept, part)  # holds the message, so that its id is not used again
        return part

    def part_of(self, reply: Message) -> _Part | None:
        """What :meth:`put` has remembered of a reply; a reply that never went there is put now."""
        if id(reply) in self.parts:
            return self.parts[id(reply)][1]
        return self.put(reply, payload_or_nothing(reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The replies of a round that have the right length. Each is a share and a sealed seed per aggregator."""

    terms: SumTerms
    nodes: tuple[int, ...]
    parts: tuple[_Part, ...]
    shares: IO[bytes]

    def share(self, position: int) -> bytes:
        """The share of the client at this position, read from the file."""
        self.shares.seek(self.parts[position].start)
        return self.shares.read(self.terms.share_bytes)

    def requests(
        self,
        step: Step,
        kept: Sequence[int],
        *,
        minimum: int,
        verify_key: bytes = b"",
        messages: Sequence[bytes] = (),
    ) -> list[AggregateRequest]:
        """What each aggregator is asked about the replies at some positions."""
        size = sealed_seed_size(self.terms.secret_bytes)
        return [
            AggregateRequest(
                step=step,
                terms=self.terms,
                minimum=minimum,
                commitments=[self.parts[position].commitment for position in kept],
                envelopes=[self.parts[position].envelopes[start : start + size] for position in kept],
                verify_key=verify_key,
                messages=list(messages),
            )
            for start in range(0, size * len(self.terms.aggregators), size)
        ]

    def by_node(self, rejected: Mapping[int, Refusal]) -> dict[int, Refusal]:
        """Why replies were dropped, by node rather than by position."""
        return {self.nodes[position]: code for position, code in rejected.items()}


def _rejected_in(answer: object) -> Mapping[int, Refusal]:
    """Which envelopes an aggregator's answer leaves out, and why."""
    if isinstance(answer, Expanded | Answers):
        return answer.rejected
    return answer if isinstance(answer, dict) else {}


def _log_dropped(aggregator: int, rejected: Mapping[int, Refusal]) -> None:
    if rejected:
        _log.warning("shuffle: aggregator %d dropped %s", aggregator, envelopes_text(len(rejected)))
