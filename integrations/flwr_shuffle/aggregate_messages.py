"""What server and aggregators send each other in a round: sealed seeds, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from flwr_shuffle.service_messages import (
    SERVICE_KEY,
    SERVICE_VERSION,
    SIGNED,
    all_bytes,
    check_signed,
    declined_entries,
    read_positions,
    service_content,
    service_values,
    signed_entries,
    signed_values,
)
from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation import (
    Aggregator,
    Answers,
    Expanded,
    ResidueLayout,
    Residues,
    Sealed,
    SumTerms,
    VerifiedTerms,
    statements,
)
from shuffle_plugins.secure_aggregation.prio3 import VERIFY_KEY_SIZE
from shuffle_plugins.shuffler import BatchRefused, Refusal, RoundContext, Statement

AGGREGATE_QUERY = "query.shuffle_aggregate"
"""Type of the message that sends an aggregator a round's sealed seeds."""

_TOTAL, _SHARES = "total", "verifier-shares"
_LARGEST, _KEY, _MESSAGES = "largest", "verify-key", "messages"
_REQUEST: dict[str, type] = {
    "version": int,
    "step": str,
    "run": str,
    "token": bytes,
    "fingerprint": bytes,
    "promised": int,
    "minimum": int,
    "size": int,
    "bits": int,
    "aggregators": list,
    "commitments": list,
    "envelopes": list,
}
_FURTHER: dict[str, dict[str, type]] = {
    "verify": {_LARGEST: int, _KEY: bytes},
    "add-verified": {_LARGEST: int, _MESSAGES: list},
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateRequest:
    """A round's sealed seeds, on their way to one aggregator.

    Attributes:
        step: what is asked for.
        terms: the round.
        minimum: fewest clients of which the server wants a sum, at least 2.
        commitments: digests of the clients' shares, 32 bytes each.
        envelopes: the clients' seeds, sealed to this aggregator, in the same order.
        verify_key: for proofs to be verified; empty otherwise.
        messages: of clients whose proofs hold, their verifier messages, in the same order.
    """

    step: Step
    terms: SumTerms
    minimum: int
    commitments: list[bytes]
    envelopes: list[bytes]
    verify_key: bytes = b""
    messages: list[bytes] = field(default_factory=list)

    @property
    def sealed(self) -> Iterator[Sealed]:
        """What an aggregator takes of each client."""
        return map(Sealed, self.commitments, self.envelopes)

    def digest(self) -> bytes:
        """Digest of the request, 32 bytes, which the aggregator signs with its answer."""
        return statements.aggregation_digest(
            step=self.step,
            terms=self.terms,
            minimum=self.minimum,
            commitments=self.commitments,
            envelopes=self.envelopes,
            further=[self.verify_key, *self.messages] if isinstance(self.terms, VerifiedTerms) else (),
        )

    def to_content(self) -> RecordDict:
        """The content of a ``query.shuffle_aggregate`` message."""
        context, layout, further = self.terms.context, self.terms.layout, dict[str, Any]()
        if isinstance(self.terms, VerifiedTerms):
            known = {_LARGEST: self.terms.largest, _KEY: self.verify_key, _MESSAGES: self.messages}
            further = {name: known[name] for name in _FURTHER[self.step]}
        return service_content(
            {
                "version": SERVICE_VERSION,
                "step": str(self.step),
                "run": context.run,
                "token": context.token,
                "fingerprint": context.fingerprint,
                "promised": context.minimum,
                "minimum": self.minimum,
                "size": layout.size,
                "bits": layout.bits,
                "aggregators": list(self.terms.aggregators),
                "commitments": self.commitments,
                "envelopes": self.envelopes,
                **further,
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        record = content.get(SERVICE_KEY)
        step = str(record.get("step")) if isinstance(record, ConfigRecord) else ""
        values = service_values(content, _REQUEST | _FURTHER.get(step, {}))
        commitments, envelopes = all_bytes(values["commitments"]), all_bytes(values["envelopes"])
        if len(commitments) != len(envelopes):
            raise ValueError("each envelope comes with the digest of a share")
        messages, verify_key = all_bytes(values.get(_MESSAGES, [])), values.get(_KEY, b"")
        if _KEY in values and len(verify_key) != VERIFY_KEY_SIZE:
            raise ValueError(f"a verification key has {VERIFY_KEY_SIZE} bytes")
        if _MESSAGES in values and len(messages) != len(envelopes):
            raise ValueError("each envelope comes with a verifier message")
        terms = SumTerms(
            context=RoundContext(
                run=values["run"],
                token=values["token"],
                fingerprint=values["fingerprint"],
                minimum=values["promised"],
            ),
            layout=ResidueLayout(values["size"], values["bits"]),
            aggregators=tuple(all_bytes(values["aggregators"])),
        )
        if _LARGEST in values:
            terms = VerifiedTerms(
                context=terms.context,
                layout=terms.layout,
                aggregators=terms.aggregators,
                largest=values[_LARGEST],
            )
        return cls(
            step=Step(values["step"]),
            terms=terms,
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            commitments=commitments,
            envelopes=envelopes,
            verify_key=verify_key,
            messages=messages,
        )


def answered_content(
    answer: Expanded | Answers | bytes | Mapping[int, Refusal],
    *,
    request: AggregateRequest,
    aggregator: Aggregator,
) -> RecordDict:
    """The content of an aggregator's reply: a sum, verifier shares, or which envelopes are bad; signed."""
    token = request.terms.context.token
    if isinstance(answer, Expanded | bytes):
        total, rejected = (
            (answer, {}) if isinstance(answer, bytes) else (answer.total.to_bytes(), answer.rejected)
        )
        said = statements.sum_statement(request=request.digest(), rejected=rejected, total=total)
        entries = signed_entries(token, rejected=rejected, signature=aggregator.sign(said))
        return service_content(entries | {_TOTAL: total})
    if isinstance(answer, Answers):
        shares = [share for _, share in sorted(answer.verifier_shares.items())]
        said = statements.verified_statement(
            request=request.digest(), rejected=answer.rejected, verifier_shares=shares
        )
        entries = signed_entries(token, rejected=answer.rejected, signature=aggregator.sign(said))
        return service_content(entries | {_SHARES: shares})
    said = statements.checked_statement(request=request.digest(), rejected=answer)
    return service_content(signed_entries(token, rejected=answer, signature=aggregator.sign(said)))


def declined_content(
    refused: BatchRefused, *, request: AggregateRequest, aggregator: Aggregator
) -> RecordDict:
    """The content of an aggregator's reply that it gives nothing for a request; signed."""
    signature = aggregator.sign(_declined(request, refused.code, refused.rejected))
    return service_content(declined_entries(refused, token=request.terms.context.token, signature=signature))


def read_checked(
    content: RecordDict, *, request: AggregateRequest, verifying_key: bytes
) -> dict[int, Refusal]:
    """Which envelopes of a request to check are not good, by their positions.

    Raises:
        BatchRefused: as :func:`read_sum`.
        ValueError: if it is anything else.
    """
    values = _signed_values(content, SIGNED, request=request, verifying_key=verifying_key)
    rejected = read_positions(values["rejected"], envelopes=len(request.envelopes))
    said = statements.checked_statement(request=request.digest(), rejected=rejected)
    check_signed(said, values["signature"], verifying_key=verifying_key)
    return rejected


def read_verified(content: RecordDict, *, request: AggregateRequest, verifying_key: bytes) -> Answers:
    """An aggregator's answers about the proofs of a request.

    Raises:
        BatchRefused: as :func:`read_sum`.
        ValueError: if it is anything else.
    """
    values = _signed_values(content, SIGNED | {_SHARES: list}, request=request, verifying_key=verifying_key)
    rejected = read_positions(values["rejected"], envelopes=len(request.envelopes))
    shares = all_bytes(values[_SHARES])
    said = statements.verified_statement(request=request.digest(), rejected=rejected, verifier_shares=shares)
    check_signed(said, values["signature"], verifying_key=verifying_key)
    good = [position for position in range(len(request.envelopes)) if position not in rejected]
    return Answers(dict(zip(good, shares, strict=True)), rejected)


def read_verified_sum(content: RecordDict, *, request: AggregateRequest, verifying_key: bytes) -> bytes:
    """An aggregator's sum of its shares of a request's clients, whose proofs hold.

    Raises:
        BatchRefused: as :func:`read_sum`.
        ValueError: if it is anything else.
    """
    values = _signed_values(content, SIGNED | {_TOTAL: bytes}, request=request, verifying_key=verifying_key)
    total: bytes = values[_TOTAL]
    if read_positions(values["rejected"], envelopes=len(request.envelopes)):
        raise ValueError("all clients of a verified sum are added up, or none")
    said = statements.sum_statement(request=request.digest(), rejected={}, total=total)
    check_signed(said, values["signature"], verifying_key=verifying_key)
    return total


def read_sum(content: RecordDict, *, request: AggregateRequest, verifying_key: bytes) -> Expanded:
    """The sum in an aggregator's answer to a request.

    Args:
        content: content of the aggregator's reply.
        request: the request that was sent to it.
        verifying_key: its verifying key, as pinned by the server.

    Raises:
        BatchRefused: with the aggregator's own code and the envelopes it dropped; WRONG_ROUND for an answer
            to another round; NOT_PROVEN if the aggregator did not sign it, for this very request.
        ValueError: if it is anything else.
    """
    values = _signed_values(content, SIGNED | {_TOTAL: bytes}, request=request, verifying_key=verifying_key)
    rejected = read_positions(values["rejected"], envelopes=len(request.envelopes))
    said = statements.sum_statement(request=request.digest(), rejected=rejected, total=values[_TOTAL])
    check_signed(said, values["signature"], verifying_key=verifying_key)
    total = Residues.from_bytes(values[_TOTAL], layout=request.terms.layout)
    return Expanded(total, len(request.envelopes) - len(rejected), rejected)


def _signed_values(
    content: RecordDict, types: dict[str, type], *, request: AggregateRequest, verifying_key: bytes
) -> dict[str, Any]:
    """The entries of an answer that is no refusal.

    Raises:
        BatchRefused: if it is one, or an answer to another round.
        ValueError: if it is anything else.
    """
    return signed_values(
        content,
        types,
        token=request.terms.context.token,
        envelopes=len(request.envelopes),
        declined=partial(_declined, request),
        verifying_key=verifying_key,
    )


def _declined(request: AggregateRequest, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    return statements.aggregation_refusal(request=request.digest(), code=code, rejected=rejected)
