"""The server's side of a shared sum: it relays sealed seeds to aggregators, and puts the total together."""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from typing_extensions import override

from flwr_shuffle.grids import Waiting
from flwr_shuffle.messages import Instruction, SharedTerms, context_of, digest_of
from flwr_shuffle.service_messages import AggregateRequest, Answer, Role, Step
from flwr_shuffle.stages.service_nodes import ServiceStage, payload_or_nothing
from flwr_shuffle.stages.stage import Anonymous, Replies, Total
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.mechanisms.base import CountRange
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
from shuffle_plugins.secure_aggregation.sharing import reconstruct
from shuffle_plugins.shuffler import BatchRefused, Refusal, keys

_log = logging.getLogger("flwr")


class SharedSumStage(ServiceStage):
    """Adds up counts that neither the server nor any aggregator sees.

    It is for protocols whose reports are whole numbers, such as ``VectorSum`` and ``BallSum``. The server
    learns the total and nothing else, and an aggregator learns nothing, unless the server and all aggregators
    work together. docs/guides/shuffling.md says what each party learns and how.

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
        exclude_after: a node that answered this many rounds in a row, and never with good envelopes, is not
            invited any more; None never excludes a node. A round counts only if other nodes' envelopes were
            good.
        share_folder: folder of the temporary file that holds the clients' shares until they are added up; by
            default the system's folder for temporary files. The file has no name, and is gone when the
            process ends. It needs room for all shares of a round. If the system's folder is in memory, as a
            tmpfs is, name a folder on a disk.
        waiting: how long to wait for the aggregators.
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
        self._share_folder = share_folder
        self._coming: _Coming | None = None

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
        return SharedTerms(
            check_seed=secrets.token_bytes(32),
            aggregators=digest_of(self._keys),
            clients=clients,
            verified=self._verified,
        )

    @override
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

    @override
    def collect(self, replies: Replies) -> Anonymous:
        coming, self._coming = self._begun(replies.instruction, replies.dim), None
        with coming.shares:
            return self._collected(replies, coming)

    def _collected(self, replies: Replies, coming: _Coming) -> Anonymous:
        """:meth:`collect`, while the file of shares is open."""
        mechanism, terms = replies.instruction.mechanism.build(dim=replies.dim), coming.terms
        counts, shared = mechanism.counts, replies.instruction.shared
        assert counts is not None
        assert shared is not None
        payloads = {reply.metadata.src_node_id: coming.part_of(reply) for reply in replies.answers}
        sent = {node: part for node, part in payloads.items() if part is not None}
        bad = dict.fromkeys(payloads.keys() - sent.keys(), Refusal.WRONG_SIZE)
        batch = _Batch(terms, replies, tuple(sent), tuple(sent.values()), coming.shares, bad)
        try:
            if isinstance(terms, VerifiedTerms):
                kept, found = self._verified_sum(terms, batch)
            else:
                kept, expansions = self._added_up(batch)
                found = _total(batch, kept, expansions, counts=counts, check_seed=shared.check_seed)
        except BatchRefused as refused:
            return replies.anonymous(
                None,
                answered=len(payloads) - len(bad),
                unreadable=len(bad),
                foreign=len(payloads) - len(sent),  # what an aggregator calls bad may be good
                refusal=refused.code,
            )
        finally:
            self._note(bad, {}, nodes=list(payloads))
        total = mechanism.estimate(torch.from_numpy(found) + len(kept) * counts.lowest, reports=len(kept))
        return replies.anonymous(
            None, answered=len(kept), unreadable=len(bad), total=Total(sum=total, reports=len(kept))
        )

    def _added_up(self, batch: _Batch) -> tuple[list[int], list[bytes]]:
        """Ask each aggregator for the sum of its seeds' expansions, all over the same clients.

        Returns:
            The positions in ``batch`` of the clients that all aggregators added up, and one sum from each.
        """
        kept, step = list(range(len(batch.nodes))), Step.ADD
        self._check_enough(kept, batch.terms)
        if len(self._keys) > 1:
            _, refusals = self._asked_about(batch, Step.CHECK, kept)
            if refusals:  # nobody was asked for a sum
                raise BatchRefused(Refusal.NOT_AGREED)
            kept, step = batch.good(kept), Step.ADD_ALL
            self._check_enough(kept, batch.terms)
        sums, refusals = self._asked_about(batch, step, kept)
        if refusals:
            # If any aggregator proves that it gave nothing out, its refusal is the one to report: without its
            # sum there is no total, so the round released nothing.
            raise min(refusals, key=lambda refused: not refused.code.conclusive)
        kept = batch.good(kept)
        try:
            self._check_enough(kept, batch.terms)
        except BatchRefused:  # the aggregator has given out a sum of fewer than everybody asked for
            _log.error("shuffle: an aggregator added up fewer clients than its minimum: %d", len(kept))
            raise BatchRefused(Refusal.INCONSISTENT) from None
        return kept, [answer.total for answer in sums]

    def _verified_sum(self, terms: VerifiedTerms, batch: _Batch) -> tuple[list[int], NDArray[np.int64]]:
        """Check the proofs, and ask for the sums of the clients whose proofs hold.

        Returns:
            The positions in ``batch`` of these clients, and the sum of their counts, each minus the lowest
            count that the mechanism allows.
        """
        server, started = RoundVerifier[int](terms), list[int]()
        for position, node in enumerate(batch.nodes):
            try:
                server.start(position, batch.share(position))
                started.append(position)
            except VerificationError:
                batch.bad[node] = Refusal.PROOF_REFUSED
        self._check_enough(started, terms)
        answers, refusals = self._asked_about(batch, Step.VERIFY, started, verify_key=server.verify_key)
        if refusals:  # nobody was asked for a sum; but a round that was begun before may have given one
            codes = {refused.code for refused in refusals}
            known = [code for code in (Refusal.REPLAYED, Refusal.UNDER_MINIMUM) if code in codes]
            raise BatchRefused(known[0] if known else Refusal.NOT_AGREED)
        said = []  # by aggregator: its verifier share of each client that it found good
        for answer in answers:
            found = [position for place, position in enumerate(started) if place not in answer.rejected]
            said.append(dict(zip(found, answer.shares, strict=True)))
        messages = dict[int, bytes]()
        for position in batch.good(started):
            try:
                messages[position] = server.decide(position, [shares[position] for shares in said])
            except VerificationError:
                batch.bad[batch.nodes[position]] = Refusal.PROOF_REFUSED
        kept = list(messages)
        self._check_enough(kept, terms)
        sums, refusals = self._asked_about(batch, Step.ADD_VERIFIED, kept, messages=list(messages.values()))
        if refusals:
            raise min(refusals, key=lambda refused: not refused.code.conclusive)
        try:
            return kept, server.total([answer.total for answer in sums])
        except CheckFailed as error:
            _log.error("shuffle: %s", error)
            raise BatchRefused(Refusal.INCONSISTENT) from None

    def _check_enough(self, kept: Sequence[int], terms: SumTerms) -> None:
        """Raise UNDER_MINIMUM if there are fewer clients than any party asks for."""
        needed = max(self.minimum, self.needed.reports, self.needed.answered, terms.context.minimum)
        if len(kept) < needed:
            raise BatchRefused(Refusal.UNDER_MINIMUM)

    def _asked_about(
        self, batch: _Batch, step: Step, kept: Sequence[int], **fields: Any
    ) -> tuple[list[Answer], list[BatchRefused]]:
        """Ask each aggregator to do a step with some clients' seeds; answers, and why some gave none.

        Why a client is left out is added to ``batch.bad``.
        """
        nodes = self._opened(batch.replies.grid)
        minimum = max(self._minimum, self.needed.reports)
        requests = dict(zip(nodes, batch.requests(step, kept, minimum=minimum, **fields), strict=True))
        pinned = dict(zip(nodes, self._pinned, strict=True))
        answers = self._asked(
            batch.replies,
            requests,
            lambda node, content: requests[node].read(content, verifying_key=pinned[node].verifying),
        ).values()
        for answer in answers:
            batch.bad |= {batch.nodes[kept[place]]: code for place, code in answer.rejected.items()}
        return (
            [answer for answer in answers if isinstance(answer, Answer)],
            [answer for answer in answers if isinstance(answer, BatchRefused)],
        )


def _total(
    batch: _Batch, kept: Sequence[int], expansions: Sequence[bytes], *, counts: CountRange, check_seed: bytes
) -> NDArray[np.int64]:
    """The total of the clients' counts, int64 (counts.size,), each count minus the lowest possible one."""
    layout = batch.terms.layout
    try:
        found = reconstruct(
            (Residues.from_bytes(batch.share(position), layout=layout) for position in kept),
            [Residues.from_bytes(expansion, layout=layout) for expansion in expansions],
            layout=layout,
            check_seed=check_seed,
        )
    except CheckFailed as error:
        _log.error("shuffle: %s", error)
        raise BatchRefused(Refusal.INCONSISTENT) from None
    if int(found.max()) > len(kept) * (counts.highest - counts.lowest):
        _log.error("shuffle: the total is more than its clients' counts can be")
        raise BatchRefused(Refusal.INCONSISTENT)
    return found


class _Part(NamedTuple):
    """What stays in memory of a reply: where its share begins in the file, the share's digest, the sealed
    seeds.
    """

    start: int
    commitment: bytes
    envelopes: bytes


@dataclass
class _Coming:
    """The replies of a round that is under way, and the file that holds their shares.

    ``parts`` is by ``id`` of the message that the grid keeps of a reply: that message, and the rest of the
    reply, or None if it had the wrong length.
    """

    instruction: Instruction
    terms: SumTerms
    shares: IO[bytes]
    parts: dict[int, tuple[Message, _Part | None]] = field(default_factory=dict)

    def put(self, kept: Message, payload: bytes) -> _Part | None:
        """Write a reply's share to the file, and remember the rest beside what the grid keeps of the
        reply.
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


@dataclass
class _Batch:
    """The replies of a round that have the right length: a share each, and a sealed seed for each aggregator.

    ``bad`` has the reason why a reply is left out, by the node.
    """

    terms: SumTerms
    replies: Replies
    nodes: tuple[int, ...]
    parts: tuple[_Part, ...]
    shares: IO[bytes]
    bad: dict[int, Refusal]

    def good(self, positions: Sequence[int]) -> list[int]:
        """Those of the positions whose replies are not bad."""
        return [position for position in positions if self.nodes[position] not in self.bad]

    def share(self, position: int) -> bytes:
        """The share of the client at this position, read from the file."""
        self.shares.seek(self.parts[position].start)
        return self.shares.read(self.terms.share_bytes)

    def requests(self, step: Step, kept: Sequence[int], **fields: Any) -> list[AggregateRequest]:
        """What each aggregator is asked about the replies at some positions."""
        size = sealed_seed_size(self.terms.secret_bytes)
        return [
            AggregateRequest.of(
                self.terms,
                step=step,
                commitments=[self.parts[position].commitment for position in kept],
                envelopes=[self.parts[position].envelopes[start : start + size] for position in kept],
                **fields,
            )
            for start in range(0, size * len(self.terms.aggregators), size)
        ]
