"""What a server and its service nodes send each other: who a node is, its work of a round, and a refusal.

A *service node* is a SuperNode of another organisation that does one step of a round and is no client: a
mix node or an aggregator. Its answers are signed, for the very request that they answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from flwr.app import ConfigRecord, RecordDict
from typing_extensions import override

from flwr_shuffle.messages import Role, Wire
from shuffle_plugins.core.ranges import Count, byte_string, whole_number
from shuffle_plugins.secure_aggregation import ResidueLayout, Residues, Sealed, SumTerms, VerifiedTerms
from shuffle_plugins.secure_aggregation.aggregator import aggregation_digest, answer_statement
from shuffle_plugins.secure_aggregation.prio3.prio3 import SEED_SIZE
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, MixedStatement, Refusal, RoundContext
from shuffle_plugins.shuffler.keys import KEY_BYTES, has_signed
from shuffle_plugins.shuffler.service import CHALLENGE_BYTES, BatchService, refusal_statement, role_statement

SERVICE_KEY = "shuffle-mix"  # of the one ConfigRecord in each of these messages


class ServiceMessage(Wire):
    """A message whose content is its own record and nothing else."""

    def to_content(self) -> RecordDict:
        """The message as a content."""
        return RecordDict({SERVICE_KEY: self.to_record()})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote; errors as of :meth:`from_record`."""
        if list(content) != [SERVICE_KEY]:
            raise ValueError(f"the content is one ConfigRecord {SERVICE_KEY!r}")
        return cls.from_record(content[SERVICE_KEY])


@dataclass(frozen=True, kw_only=True)
class RoleQuestion(ServiceMessage):
    """The question for a node's role: a challenge, since anybody can state a public key."""

    challenge: Annotated[bytes, byte_string(CHALLENGE_BYTES)]


@dataclass(frozen=True, kw_only=True)
class NodeRole(ServiceMessage):
    """What a service node says of itself: the key to which clients seal, and the fewest reports that it gives
    out; signed for the challenge and as one node of a run.

    The server never passes the key on to clients.
    """

    public_key: Annotated[bytes, byte_string(KEY_BYTES)]
    minimum: Annotated[int, whole_number(at_least=2)]
    signature: bytes

    @classmethod
    def signed(cls, service: BatchService, *, challenge: bytes, run: str, node: int) -> Self:
        """The role of a service, signed in answer to a challenge, as one node of a run."""
        unsigned = cls(public_key=service.public_key.sealing, minimum=service.minimum, signature=b"")
        said = unsigned._statement(role=Role(service.role), challenge=challenge, run=run, node=node)
        return cls(public_key=unsigned.public_key, minimum=unsigned.minimum, signature=service.sign(said))

    def holds(self, *, role: Role, challenge: bytes, run: str, node: int, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this role, for this challenge and as this node."""
        said = self._statement(role=role, challenge=challenge, run=run, node=node)
        return has_signed(verifying_key, self.signature, said)

    def _statement(self, **told: Any) -> bytes:
        return role_statement(sealing_key=self.public_key, minimum=self.minimum, **told)


@dataclass(frozen=True, kw_only=True)
class Unable(ServiceMessage):
    """The reply of a node that cannot sign."""

    code: Refusal


def refusal_in(content: RecordDict) -> Refusal | None:
    """The code of an :class:`Unable`; None if the content is something else."""
    record = content.get(SERVICE_KEY)
    if not isinstance(record, ConfigRecord) or "code" not in record:
        return None
    return Unable.from_content(content).code


@dataclass(frozen=True, kw_only=True)
class Answer(ServiceMessage):
    """A service node's signed answer to a request of a round.

    Attributes:
        rejected: which envelopes were dropped, by position, and why.
        refusal: why there is nothing else; None if there is.
        said: what a mixer has signed of a batch.
        items: what came out of a mixer, or a part of it.
        total: what the seeds add up to, or the shares of a verified sum.
        shares: about proofs, in the order of the good envelopes.
        signature: of all this and the request; of a batch it is in ``said``.
    """

    token: bytes
    rejected: dict[int, Refusal] = field(default_factory=dict)
    refusal: Refusal | None = None
    said: MixedStatement | None = None
    items: list[bytes] = field(default_factory=list)
    total: bytes = b""
    shares: list[bytes] = field(default_factory=list)
    signature: bytes = b""


class ServiceRequest(ServiceMessage):
    """What is asked of a service node in a round."""

    @property
    @abstractmethod
    def token(self) -> bytes:
        """Tells this round from all others."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many envelopes the node is to work on."""

    @abstractmethod
    def declined(self, code: Refusal, rejected: Mapping[int, Refusal]) -> bytes:
        """What the node signs if it gives nothing."""

    def refused(self, refused: BatchRefused, *, service: BatchService) -> Answer:
        """The signed answer that there is nothing for this request."""
        signature = service.sign(self.declined(refused.code, refused.rejected))
        rejected = dict(refused.rejected)
        return Answer(token=self.token, rejected=rejected, refusal=refused.code, signature=signature)

    @abstractmethod
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
        """A node's answer, signed for this very request, with what was asked for.

        Raises:
            BatchRefused: with the node's own code and the envelopes it dropped; WRONG_ROUND for an answer to
                another round; NOT_PROVEN if it is not signed for this very request.
            ValueError: if it is anything else.
        """

    def _answer(self, content: RecordDict, verifying_key: bytes) -> Answer:
        """The answer if it is no refusal; what else it holds the caller has to check."""
        if refusal_in(content) is not None:
            raise BatchRefused(Refusal.NOT_PROVEN)
        answer = Answer.from_content(content)
        if answer.token != self.token:
            raise BatchRefused(Refusal.WRONG_ROUND)
        if not all(0 <= position < self.count for position in answer.rejected):
            raise ValueError("a dropped envelope that was not sent")
        if answer.refusal is not None:
            said = self.declined(answer.refusal, answer.rejected)
            if not has_signed(verifying_key, answer.signature, said):
                raise BatchRefused(Refusal.NOT_PROVEN)
            raise BatchRefused(answer.refusal, answer.rejected)
        return answer


@dataclass(frozen=True, kw_only=True)
class MixMessage(ServiceRequest):
    """A piece of a batch on its way to a mix node, or the question for a part of what came out.

    The answer to the last piece holds what the mixer has signed of the batch, and the first part of it.

    Attributes:
        request: the batch.
        first: position of the first item among all, of the piece or of what is asked for.
        most: how many items are asked for, or may come with the answer to the last piece.
        items: the piece; empty to ask for a part of what came out.
    """

    request: BatchRequest
    first: int
    most: Count
    items: list[bytes] = field(default_factory=list)

    @property
    @override
    def token(self) -> bytes:
        return self.request.context.token

    @property
    @override
    def count(self) -> int:
        return self.request.count

    @override
    def declined(self, code: Refusal, rejected: Mapping[int, Refusal]) -> bytes:
        return refusal_statement(request=self.request.digest(), code=code, rejected=rejected)

    @override
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
        """A mixer's answer: with ``said`` after the last piece, and with the items asked for; NOT_PROVEN too
        if it has other items.
        """
        answer = self._answer(content, verifying_key)
        last = bool(self.items) and self.first + len(self.items) == self.count
        if (answer.said is not None) != last:
            raise ValueError("a mixer says what it has mixed after the last piece")
        gives = 0 if self.items else self.most
        if answer.said is not None:
            self.request.check_said(answer.said)
            gives = min(self.most, answer.said.count)
        if len(answer.items) != gives:
            raise BatchRefused(Refusal.NOT_PROVEN)
        return answer


class Step(StrEnum):
    """What an aggregator is asked to do with a round's envelopes.

    ``CHECK``: say which are not good. ``ADD``: add up the seeds of the good ones. ``ADD_ALL``: the same, if
    all are good. ``VERIFY``: answer about the clients' range proofs. ``ADD_VERIFIED``: add up the shares of
    clients whose proofs hold.
    """

    CHECK = "check"
    ADD = "add"
    ADD_ALL = "add-all"
    VERIFY = "verify"
    ADD_VERIFIED = "add-verified"


@dataclass(frozen=True, kw_only=True)
class AggregateRequest(ServiceRequest):
    """A round's sealed seeds, on their way to one aggregator.

    Attributes:
        largest: the largest count that clients prove; 0 without proofs.
        minimum: fewest clients of which the server wants a sum.
        commitments, envelopes: of each client, the digest of its share, and its seed sealed to this
            aggregator.
        verify_key: for proofs to be verified; empty otherwise.
        messages: of clients whose proofs hold, their verifier messages.
    """

    step: Step
    context: RoundContext
    layout: ResidueLayout
    aggregators: list[bytes]
    largest: Annotated[int, whole_number(at_least=0)] = 0
    minimum: Annotated[int, whole_number(at_least=2)]
    commitments: list[bytes]
    envelopes: list[bytes]
    verify_key: Annotated[bytes, byte_string(0, SEED_SIZE)] = b""
    messages: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.commitments) != len(self.envelopes):
            raise ValueError("each envelope comes with the digest of a share")
        if bool(self.largest) != (self.step in (Step.VERIFY, Step.ADD_VERIFIED)):
            raise ValueError(f"the step {self.step} does not go with these terms")
        if bool(self.verify_key) != (self.step is Step.VERIFY):
            raise ValueError("proofs are verified with a key")
        if len(self.messages) != (self.count if self.step is Step.ADD_VERIFIED else 0):
            raise ValueError("each envelope of a verified sum comes with a verifier message")
        _ = self.terms  # refuses aggregators that do not go together

    @classmethod
    def of(cls, terms: SumTerms, **fields: Any) -> Self:
        """A request of the round with these terms."""
        return cls(
            context=terms.context,
            layout=terms.layout,
            aggregators=list(terms.aggregators),
            largest=terms.largest if isinstance(terms, VerifiedTerms) else 0,
            **fields,
        )

    @cached_property
    def terms(self) -> SumTerms:
        """What the aggregators have to agree on: the layout, who they are, and how large a row may be."""
        context, layout, aggregators = self.context, self.layout, tuple(self.aggregators)
        if not self.largest:
            return SumTerms(context=context, layout=layout, aggregators=aggregators)
        return VerifiedTerms(context=context, layout=layout, aggregators=aggregators, largest=self.largest)

    @property
    @override
    def token(self) -> bytes:
        return self.context.token

    @property
    @override
    def count(self) -> int:
        return len(self.envelopes)

    @property
    def sealed(self) -> list[Sealed]:
        """What an aggregator takes of each client."""
        return list(map(Sealed, self.commitments, self.envelopes))

    @cached_property
    def digest(self) -> bytes:
        """Digest of the request, 32 bytes, which the aggregator signs with its answer."""
        return aggregation_digest(
            step=self.step,
            terms=self.terms,
            minimum=self.minimum,
            commitments=self.commitments,
            envelopes=self.envelopes,
            further=[self.verify_key, *self.messages] if self.largest else (),
        )

    @override
    def declined(self, code: Refusal, rejected: Mapping[int, Refusal]) -> bytes:
        return refusal_statement(request=self.digest, code=code, rejected=rejected)

    def said(self, answer: Answer) -> bytes:
        """What the aggregator signs of its answer."""
        given = {Step.CHECK: (), Step.VERIFY: answer.shares}.get(self.step, (answer.total,))
        return answer_statement(request=self.digest, rejected=answer.rejected, given=given)

    @override
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
        answer = self._answer(content, verifying_key)
        if not has_signed(verifying_key, answer.signature, self.said(answer)):
            raise BatchRefused(Refusal.NOT_PROVEN)
        if self.step is Step.VERIFY and len(answer.shares) != self.count - len(answer.rejected):
            raise ValueError("there is an answer about each good envelope")
        if self.step is Step.ADD_VERIFIED and answer.rejected:
            raise ValueError("all clients of a verified sum are added up, or none")
        if self.step in (Step.ADD, Step.ADD_ALL):
            Residues.from_bytes(answer.total, layout=self.layout)
        return answer
