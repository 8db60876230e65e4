"""What server and mix node send each other in a round: its envelopes, and the batch that comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import RecordDict

from flwr_shuffle.service_messages import (
    SERVICE_KEY,
    SERVICE_VERSION,
    all_bytes,
    check_signed,
    positions_text,
    read_positions,
    refusal_in,
    service_content,
    service_values,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    KEY_BYTES,
    BatchRefused,
    MixedBatch,
    Mixer,
    Refusal,
    RoundContext,
    statements,
)

MIX_QUERY = "query.mix"
"""Type of the message that asks the mix node to mix a round's envelopes."""

_REFUSAL = "refusal"
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
_ANSWER: dict[str, type] = {"version": int, "token": bytes, "rejected": str, "signature": bytes}
_BATCH: dict[str, type] = _ANSWER | {"answered": int, "reports": list}
_REFUSED: dict[str, type] = _ANSWER | {_REFUSAL: str}


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
        """The content of a ``query.mix`` message."""
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
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        values = service_values(content, _REQUEST)
        if len(values["analyzer-key"]) != KEY_BYTES:
            raise ValueError(f"an analyzer's key has {KEY_BYTES} bytes")
        return cls(
            context=RoundContext(
                run=values["run"],
                token=values["token"],
                fingerprint=values["fingerprint"],
                minimum=values["promised"],
            ),
            analyzer_key=values["analyzer-key"],
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            size=values["size"],
            envelopes=all_bytes(values["envelopes"]),
        )


def batch_content(batch: MixedBatch, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.mix``: a batch, signed."""
    said = statements.batch_statement(
        request=request.digest(), answered=batch.answered, rejected=batch.rejected, reports=batch.reports
    )
    values = _answer(request, rejected=batch.rejected, signature=mixer.sign(said))
    return service_content(values | {"answered": batch.answered, "reports": batch.reports})


def refused_content(refused: BatchRefused, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.mix``: that there is no batch, signed."""
    said = statements.refusal_statement(
        request=request.digest(), code=refused.code, rejected=refused.rejected
    )
    values = _answer(request, rejected=refused.rejected, signature=mixer.sign(said))
    return service_content(values | {_REFUSAL: str(refused.code)})


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
    if refusal_in(content) is not None:
        raise BatchRefused(Refusal.NOT_PROVEN)
    refuses = _REFUSAL in content.get(SERVICE_KEY, {})
    values = service_values(content, _REFUSED if refuses else _BATCH)
    if values["token"] != request.context.token:
        raise BatchRefused(Refusal.WRONG_ROUND)
    rejected = read_positions(values["rejected"], envelopes=len(request.envelopes))
    if refuses:
        code = Refusal(values[_REFUSAL])
        said = statements.refusal_statement(request=request.digest(), code=code, rejected=rejected)
        check_signed(said, values["signature"], verifying_key=verifying_key)
        raise BatchRefused(code, rejected)
    reports, answered = all_bytes(values["reports"]), values["answered"]
    said = statements.batch_statement(
        request=request.digest(), answered=answered, rejected=rejected, reports=reports
    )
    check_signed(said, values["signature"], verifying_key=verifying_key)
    if answered + len(rejected) != len(request.envelopes) or not 1 <= len(reports) <= answered:
        raise ValueError("not as many good and bad envelopes as were sent, or more reports than good ones")
    if len(set(reports)) < len(reports):
        raise ValueError("the same report twice: every one is sealed anew")
    return MixedBatch(reports=reports, answered=answered, rejected=rejected)


def _answer(request: MixRequest, *, rejected: Mapping[int, Refusal], signature: bytes) -> dict[str, Any]:
    return {
        "version": SERVICE_VERSION,
        "token": request.context.token,
        "rejected": positions_text(rejected),
        "signature": signature,
    }
