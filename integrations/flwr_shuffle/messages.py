"""What server and clients send each other: an instruction, and a payload or a refusal in reply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from flwr.app import ConfigRecord, Error, Message, RecordDict

# Flower gives the codes of errors no public address.
from flwr.common.constant import ErrorCode

from flwr_shuffle.evaluation import MOST_METRICS, Metric
from flwr_shuffle.updates import UpdateTerms
from flwr_shuffle.wire import Wire, byte_string, text_of
from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Count, Ranged, in_range, whole_number
from shuffle_plugins.mechanisms.base import CountRange
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.secure_aggregation import ResidueLayout, SumTerms, VerifiedTerms
from shuffle_plugins.shuffler import RoundContext
from shuffle_plugins.shuffler.keys import KEY_BYTES
from shuffle_plugins.shuffler.shuffler import TOKEN_BYTES

RECORD_KEY = "shuffle"
"""Key of the :class:`ConfigRecord` of an instruction, and of a reply."""

PAYLOAD_KEY = "payload"
"""The one entry of a reply's record: bytes, equally many in all replies of a round."""

DRAWN_KEY = "shuffle-record"
"""Key of the :class:`ConfigRecord` by which the mod tells the app which record it drew."""

_LARGEST = (1 << 63) - 1  # the largest whole number that a ConfigRecord holds
_MOST_RECORDS = 10**6  # of a client; it trains once for each that it draws, and every order is drawn whole
_REPORT, _DUMMY = b"\x01", b"\x00"


class ClientRefusal(StrEnum):
    """Why a client refuses: the constant texts of its error replies, which hold no data.

    All but ``TRAINING_FAILED`` and ``INTERNAL`` follow from the request and the client's settings alone.
    """

    NO_INSTRUCTION = "shuffle: this client trains in shuffled rounds only, and the message has no instruction"
    BAD_INSTRUCTION = "shuffle: the instruction is malformed"
    BAD_MODEL = (
        "shuffle: the message must hold one ArrayRecord of floating-point arrays; integer arrays may "
        "be among them"
    )
    BAD_MECHANISM = "shuffle: this client cannot build the mechanism for this model"
    SEALED_SUM = (
        "shuffle: the server asks for one client's share of a multi-message sum as a sealed report, but a "
        "single share is not private; the server must use SharedSumStage or SummingStage"
    )
    UNSHARED = (
        "shuffle: this client has pinned aggregators and sends nothing but shares of its counts to them and "
        "the server"
    )
    NO_AGGREGATORS = (
        "shuffle: counts are shared with aggregators that the client has pinned; set "
        "shuffle-aggregator-public-keys and shuffle-signing-key-file in its node_config"
    )
    OTHER_AGGREGATORS = (
        "shuffle: the server's aggregators are not those that this client has pinned, or are in another "
        "order: aggregator_public_keys of its stage and shuffle-aggregator-public-keys must be the same list"
    )
    NO_COUNTS = "shuffle: this mechanism has no whole-number counts that could be shared"
    SERVICE_NODE = (
        "shuffle: this node is a mix node or an aggregator (shuffle-role in its node_config), and trains "
        "nothing; the server's stage does not know it: ShuffleStrategy needs "
        "shuffler=MixNodeStage(mixer_public_key=...) or SharedSumStage(aggregator_public_keys=...)"
    )
    BAD_SETTINGS = "shuffle: the client's node_config is not valid; the client's own log says why"
    NO_EVALUATE = (
        "shuffle: this client does not send evaluation results without protection; to allow it, set "
        "shuffle-allow-evaluate=true in its node_config, or, in a simulation, ShuffleMod(allow=['evaluate'])"
    )
    NO_QUERY = (
        "shuffle: this client does not answer queries; to allow it, set shuffle-allow-query=true in its "
        "node_config, or, in a simulation, ShuffleMod(allow=['query'])"
    )
    NO_GET_PARAMETERS = (
        "shuffle: this client does not send its model without protection; its operator allows it by "
        "shuffle-allow-get-parameters=true in node_config"
    )
    NO_GET_PROPERTIES = (
        "shuffle: this client does not tell its properties; its operator allows it by "
        "shuffle-allow-get-properties=true in node_config"
    )
    UNKNOWN_TYPE = "shuffle: this client does not answer messages of this type"
    NO_LIMITS = (
        "shuffle: the client has no limits; set shuffle-max-local-epsilon in its node_config, or, in a "
        "simulation, ShuffleMod(limits=ClientLimits(max_local_epsilon=..., max_rounds=...))"
    )
    NO_TOTAL = (
        "shuffle: the client has no limit over all its rounds; set shuffle-max-rounds or "
        "shuffle-max-total-local-epsilon in its node_config (with shuffle-mixer-public-key set, "
        "shuffle-max-epsilon and shuffle-delta are enough), or, in a simulation, "
        "ShuffleMod(limits=ClientLimits(max_local_epsilon=..., max_rounds=...))"
    )
    NO_LEDGER = (
        "shuffle: the client's node_config sets limits but no shuffle-ledger-file, which is needed to count "
        "what is spent over all runs"
    )
    LOCAL_DELTA = "shuffle: the mechanism's local delta exceeds shuffle-max-local-delta"
    UNSEALED = "shuffle: this client has pinned a mixer's key and does not send unsealed reports"
    OTHER_MIXERS = (
        "shuffle: the server has another number of mixers in a cascade than this client has pinned in "
        "shuffle-mixer-public-key"
    )
    NO_MIXER_KEY = "shuffle: sealed reports need shuffle-mixer-public-key and shuffle-signing-key-file"
    BAD_SIGNING_KEY = "shuffle: the client's signing key cannot be read"
    BAD_ANALYZER_KEY = "shuffle: reports cannot be sealed to the analyzer's key that the server sent"
    LEDGER = "shuffle: the client's ledger cannot be used"
    MAX_LOCAL_EPSILON = "shuffle: the round's local epsilon exceeds the client's limit"
    NO_SUMS = (
        "shuffle: a share of this sum has no finite local epsilon; a client agrees to such sums by "
        "shuffle-max-local-epsilon=inf with shuffle-max-epsilon and shuffle-delta, or "
        "ClientLimits(max_local_epsilon=math.inf, max_epsilon=..., delta=...)"
    )
    SUMS_ALONE = (
        "shuffle: this client agrees to sums alone (shuffle-max-local-epsilon=inf), not to reports by "
        "themselves; to those it agrees by a finite shuffle-max-local-epsilon"
    )
    MAX_ROUNDS = "shuffle: the client has taken part in as many rounds as it agrees to"
    MAX_TOTAL_LOCAL_EPSILON = "shuffle: the round would exceed the client's total local epsilon"
    MIN_REPORTS = (
        "shuffle: the server promises fewer reports in a round than the client's shuffle-min-reports"
    )
    MAX_EPSILON = "shuffle: the round could take the client's certified epsilon over its shuffle-max-epsilon"
    TOKEN_SPENT = (
        "shuffle: the client has answered this round before, or another node counts in the same ledger file"
    )
    TRAINING_FAILED = "shuffle: training failed on the client"
    INTERNAL = "shuffle: the client failed; its own log says why"


@dataclass(frozen=True, kw_only=True)
class SharedTerms(Ranged):
    """How a round's counts are shared between the server and aggregators.

    Attributes:
        check_seed: 32 random bytes, new for each round, from which the check of the sum is made. Clients and
            the server know it; aggregators must not.
        aggregators: :func:`digest_of` the aggregators' keys. The keys themselves are never sent: a client
            seals to those that its operator has pinned.
        clients: the most clients whose counts may be in the sum; it sets how many bits a share has.
        verified: whether clients prove that their counts are within bounds.
    """

    check_seed: Annotated[bytes, byte_string(32)]
    aggregators: Annotated[bytes, byte_string(32)]
    clients: Annotated[int, whole_number(at_least=2, at_most=_LARGEST)]
    verified: bool = False

    def of_round(
        self, context: RoundContext, *, counts: CountRange, aggregators: Sequence[bytes]
    ) -> SumTerms:
        """What all parties of the round must know alike, with the aggregators' keys in the server's order."""
        largest, keys = counts.highest - counts.lowest, tuple(aggregators)
        layout = ResidueLayout.of_sum(size=counts.size, largest=largest, clients=self.clients)
        if self.verified:
            return VerifiedTerms(context=context, layout=layout, aggregators=keys, largest=largest)
        return SumTerms(context=context, layout=layout, aggregators=keys)


def digest_of(aggregators: Sequence[bytes]) -> bytes:
    """Digest of aggregators' public keys to seal to, 32 bytes; it depends on their order."""
    return hashlib.sha256(b"flwr_shuffle aggregators\n" + b"".join(aggregators)).digest()


@dataclass(frozen=True, kw_only=True)
class Instruction(Wire):
    """What a server asks of every client it invites to a round; all of them must get the same.

    Attributes:
        token: 16 random bytes, new for each attempt at a round.
        run: name of the training run.
        server_round: number of the round within the run, from 0.
        mechanism: the mechanism that makes a report of the update.
        participation: probability with which a client takes part. Otherwise it sends a dummy, or, to a sum, a
            share of the zero vector.
        analyzer_key: public X25519 key to which reports are sealed; empty for unsealed payloads.
        minimum: fewest reports that are let through together. Sealed reports are bound to it, so a mixer
            gives out no fewer.
        metrics: what is reported of an evaluation; empty in training, where the model's update is reported.
        update: how the update is weighed and clipped before it is randomised.
        mixers: how many mixers the cascade of a sealed round has.
        shared: how counts are shared between the server and aggregators; None if they are not.
        records_per_client: m, the records that each client has. If it is more than 1, the client draws some
            of them, trains on each by itself, and reports on each.
        samples_per_client: s, how many of its records a client draws; so many reports it sends.
    """

    token: Annotated[bytes, byte_string(TOKEN_BYTES)]
    run: Annotated[str, text_of(128)]
    server_round: Annotated[int, whole_number(at_least=0, at_most=_LARGEST)]
    mechanism: Spec
    participation: Annotated[float, in_range(above=0, at_most=1)] = 1.0
    analyzer_key: Annotated[bytes, byte_string(0, KEY_BYTES)] = b""
    minimum: Annotated[int, whole_number(at_least=2, at_most=_LARGEST)] = 2
    metrics: tuple[Metric, ...] = ()
    update: UpdateTerms = field(default_factory=UpdateTerms)
    mixers: Count = 1
    shared: SharedTerms | None = None
    records_per_client: Annotated[int, whole_number(at_most=_MOST_RECORDS)] = 1
    samples_per_client: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mechanism, Spec):
            raise ValueError(f"mechanism must be a Spec, got {self.mechanism!r}")
        if (
            len({metric.name for metric in self.metrics}) < len(self.metrics)
            or len(self.metrics) > MOST_METRICS
        ):
            raise ValueError(f"metrics are at most {MOST_METRICS} different ones")
        if self.mixers > 1 and not self.sealed:
            raise ValueError("a mix cascade takes sealed reports: there is an analyzer's key")
        if self.shared and self.sealed:
            raise ValueError("counts are shared, and not sealed to an analyzer")
        checks.whole("samples_per_client", self.samples_per_client, at_most=self.records_per_client)
        if self.draws_records and (self.metrics or self.mechanism.must_be_summed):
            raise ValueError("records are drawn in training, for reports that need no sum")
        if self.samples_per_client > 1 and self.mixers > 1:
            raise ValueError("clients that send several reports each need a single mixer, not a mix cascade")

    @property
    def sealed(self) -> bool:
        """Whether replies travel in sealed envelopes."""
        return bool(self.analyzer_key)

    @property
    def draws_records(self) -> bool:
        """Whether clients draw records of theirs, and report on each by itself."""
        return self.records_per_client > 1

    @property
    def has_dummies(self) -> bool:
        """Whether clients that do not take part send dummies; to a sum they add zeros, with their noise."""
        return self.participation < 1 and not self.mechanism.must_be_summed

    def report_dim(self, model_dim: int) -> int:
        """Length of the vector that is reported: the model's update and its bits, or the metrics."""
        return len(self.metrics) or model_dim + self.update.bits


def instruction_of(message: Message) -> Instruction | None:
    """The instruction in a message; None without a record under :data:`RECORD_KEY`, ValueError for
    another.
    """
    if not message.has_content() or RECORD_KEY not in message.content:
        return None
    return Instruction.from_record(message.content[RECORD_KEY])


def context_of(instruction: Instruction, *, dim: int) -> RoundContext:
    """What envelopes of this round are bound to: an envelope opens only under an equal context.

    The fingerprint covers the whole instruction and the dimension (:meth:`Instruction.report_dim`). The
    fewest reports to be let through and the reports of each client are beside it, as numbers that the mixer
    reads. If a server told one client to take part more often than the others, that client's envelope would
    be refused.
    """
    asked = repr(sorted(instruction.to_record().items())).encode()
    fingerprint = instruction.mechanism.fingerprint(dim=dim)
    digest = hashlib.sha256(b"flwr_shuffle round\n" + fingerprint + asked).digest()
    return RoundContext(
        run=instruction.run,
        token=instruction.token,
        fingerprint=digest,
        minimum=instruction.minimum,
        reports=instruction.samples_per_client,
    )


def plain_payload(report: bytes | None, *, size: int) -> bytes:
    """An unsealed payload of ``size`` + 1 bytes: a flag, then a client's reports, or zeros for a dummy."""
    if report is None:
        return _DUMMY + bytes(size)
    if len(report) != size:
        raise ValueError(f"a report of this round has {size} bytes, got {len(report)}")
    return _REPORT + report


def read_plain_payload(payload: bytes, *, size: int) -> bytes | None:
    """The reports in what :func:`plain_payload` wrote for this size; None for a dummy."""
    if len(payload) == size + 1 and payload[:1] == _REPORT:
        return payload[1:]
    if payload != _DUMMY + bytes(size):
        raise ValueError("not an unsealed payload of this round")
    return None


def reply(payload: bytes, *, to: Message) -> Message:
    """A reply with a payload and nothing else."""
    return Message(RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: payload})}), reply_to=to)


def payload_of(message: Message) -> bytes:
    """The payload of a reply; ValueError if the message is an error, or has anything but one payload."""
    if message.has_content() and list(message.content) == [RECORD_KEY]:
        record = message.content[RECORD_KEY]
        if isinstance(record, ConfigRecord) and list(record) == [PAYLOAD_KEY]:
            payload = record[PAYLOAD_KEY]
            if isinstance(payload, bytes) and payload:
                return payload
    raise ValueError("not a reply with one payload and nothing else")


def refusal(reason: str, *, to: Message) -> Message:
    """An error reply that says by a constant text which precondition failed."""
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=to)


def with_record(message: Message, place: int) -> Message:
    """A copy of a message to an app, which says on which record to train; see :func:`drawn_record`."""
    asked = Message(RecordDict(), reply_to=message)
    asked.metadata.__dict__.update(message.metadata.__dict__)  # they have no public setter
    asked.content = copied(message.content)
    asked.content[DRAWN_KEY] = ConfigRecord({"place": place})
    return asked


def drawn_record(message: Message) -> int:
    """The place, from 0 to m − 1, of the record on which a client app is to train on this message.

    A strategy with ``Updates(records_per_client=m)`` has every client draw some of its m records, uniformly,
    without replacement and in secret. The mod calls the app once for each, and every call makes one report.
    What the app returns may depend on that record alone and on the message: not on other records, nor on
    what it kept of earlier calls. A client with fewer than m records returns the model as it is for the
    places that it lacks, or raises, which counts as a failure of that record alone.

    Raises:
        ValueError: if the round's strategy draws no records, or the app's first mod is no ``ShuffleMod``.
    """
    record = message.content.get(DRAWN_KEY) if message.has_content() else None
    place = record.get("place") if isinstance(record, ConfigRecord) else None
    if type(place) is not int:
        raise ValueError(
            "no record was drawn for this message: give ShuffleStrategy Updates(records_per_client=…), and "
            "put ShuffleMod() first among the app's mods"
        )
    return place


def copied(content: RecordDict) -> RecordDict:
    """The content with records of its own, whose arrays and values are shared."""
    copies: dict[str, Any] = {}
    for key, record in content.items():
        copies[key] = type(record)(dict(record.items()))  # type: ignore[arg-type]
    return RecordDict(copies)
