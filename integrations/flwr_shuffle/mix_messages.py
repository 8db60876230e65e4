"""What server and mix node send each other in a round: its envelopes, and the batch that comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from flwr.app import RecordDict

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
from shuffle_plugins.shuffler import (
    KEY_BYTES,
    BatchRefused,
    MixedBatch,
    Mixer,
    Refusal,
    RoundContext,
    Statement,
    statements,
)

MIX_QUERY = "query.shuffle_mix"
"""Type of the message that asks the mix node to mix a round's envelopes."""

_REQUEST: dict[str, type] = {
    "version": int,
    "run": str,
    "token": bytes,
    "fingerprint": bytes,
    "analyzer-key": bytes,
    "promised": int,
    "minimum": int,
    "size": int,
    "envelopes": list,
}
_SEVERAL: dict[str, type] = {"reports": int}  # only where clients send several reports each
_BATCH: dict[str, type] = SIGNED | {"answered": int, "reports": list}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest:
    """A round's envelopes, on their way to the mixer.

    Attributes:
        context: the round.
        analyzer_key: public key to which clients sealed their reports, 32 bytes.
        minimum: fewest reports with which the server wants a batch, at least 2.
        size: bytes of an envelope of the round.
        envelopes: one per client that answered; at least one.
    """

    context: RoundContext
    analyzer_key: bytes
    minimum: int
    size: int
    envelopes: list[bytes]

    def digest(self) -> bytes:
        """Digest of the request, 32 bytes, which the mixer signs with its answer."""
        return statements.request_digest(
            context=self.context,
            analyzer_key=self.analyzer_key,
            minimum=self.minimum,
            size=self.size,
            envelopes=self.envelopes,
        )

    def to_content(self) -> RecordDict:
        """The content of a ``query.shuffle_mix`` message."""
        return service_content(
            {
                "version": SERVICE_VERSION,
                "run": self.context.run,
                "token": self.context.token,
                "fingerprint": self.context.fingerprint,
                "analyzer-key": self.analyzer_key,
                "promised": self.context.minimum,
                "minimum": self.minimum,
                "size": self.size,
                "envelopes": self.envelopes,
            }
            | several_entry(self.context)
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        values = service_values(content, _REQUEST | several_type(content))
        if len(values["analyzer-key"]) != KEY_BYTES:
            raise ValueError(f"an analyzer's key has {KEY_BYTES} bytes")
        return cls(
            context=RoundContext(
                run=values["run"],
                token=values["token"],
                fingerprint=values["fingerprint"],
                minimum=values["promised"],
                reports=values.get("reports", 1),
            ),
            analyzer_key=values["analyzer-key"],
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            size=values["size"],
            envelopes=all_bytes(values["envelopes"]),
        )


def several_entry(context: RoundContext) -> dict[str, int]:
    """The entry of a request that says how many reports each client sends; none if it is one."""
    return {} if context.reports == 1 else {"reports": context.reports}


def several_type(content: RecordDict) -> dict[str, type]:
    """The type of that entry, if a request has it."""
    return _SEVERAL if "reports" in content.get(SERVICE_KEY, {}) else {}


def batch_content(batch: MixedBatch, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.shuffle_mix``: a batch, signed."""
    said = statements.batch_statement(
        request=request.digest(), answered=batch.answered, rejected=batch.rejected, reports=batch.reports
    )
    values = signed_entries(request.context.token, rejected=batch.rejected, signature=mixer.sign(said))
    return service_content(values | {"answered": batch.answered, "reports": batch.reports})


def refused_content(refused: BatchRefused, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.shuffle_mix``: that there is no batch, signed."""
    signature = mixer.sign(_declined(request, refused.code, refused.rejected))
    return service_content(declined_entries(refused, token=request.context.token, signature=signature))


def read_answer(content: RecordDict, *, request: MixRequest, verifying_key: bytes) -> MixedBatch:
    """The batch in what :func:`batch_content` wrote in answer to a request.

    Args:
        content: content of the mix node's reply.
        request: the request that was sent to the mix node.
        verifying_key: the mixer's verifying key, as pinned by the server.

    Raises:
        BatchRefused: with the mixer's own code and the envelopes it dropped; WRONG_ROUND for an answer to
            another round; NOT_PROVEN if the mixer did not sign it, for this very request.
        ValueError: if it is anything else.
    """
    values = signed_values(
        content,
        _BATCH,
        token=request.context.token,
        envelopes=len(request.envelopes),
        declined=partial(_declined, request),
        verifying_key=verifying_key,
    )
    rejected = read_positions(values["rejected"], envelopes=len(request.envelopes))
    reports, answered = all_bytes(values["reports"]), values["answered"]
    said = statements.batch_statement(
        request=request.digest(), answered=answered, rejected=rejected, reports=reports
    )
    check_signed(said, values["signature"], verifying_key=verifying_key)
    clients, rest = divmod(len(reports), request.context.reports)
    if answered + len(rejected) != len(request.envelopes) or rest or not 1 <= clients <= answered:
        raise ValueError("not as many good and bad envelopes as were sent, or more reports than good ones")
    if len(set(reports)) < len(reports):
        raise ValueError("the same report twice: every one is sealed anew")
    return MixedBatch(reports=reports, answered=answered, rejected=rejected)


def _declined(request: MixRequest, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    return statements.refusal_statement(request=request.digest(), code=code, rejected=rejected)
