"""What server, clients and service nodes send each other.

A *service node* is a SuperNode of another organisation that does one step of a round and is no client: a
mix node or an aggregator. Its answers are signed, for the very request that they answer.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin, get_type_hints

from flwr.app import ConfigRecord, Error, Message, RecordDict, UserConfigValue

# Flower gives the codes of errors no public address.
from flwr.common.constant import ErrorCode
from typing_extensions import override

from flwr_shuffle.metrics import Metric, check_metrics, size_of
from flwr_shuffle.updates import UpdateTerms, of_kind, text_of
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Ranged, byte_string, in_range, whole_number
from shuffle_plugins.mechanisms import PrivateSum, spec_from_json
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.secure_aggregation import (
    ResidueLayout,
    Residues,
    Sealed,
    SumTerms,
    VerifiedTerms,
    WindowTerms,
)
from shuffle_plugins.secure_aggregation.aggregator import aggregation_digest, answer_statement
from shuffle_plugins.secure_aggregation.prio3.prio3 import SEED_SIZE
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, MixedStatement, Refusal, RoundContext
from shuffle_plugins.shuffler.keys import KEY_BYTES, has_signed
from shuffle_plugins.shuffler.service import (
    CHALLENGE_BYTES,
    BatchService,
    refusal_statement,
    role_statement,
)
from shuffle_plugins.shuffler.shuffler import TOKEN_BYTES

MESSAGE_VERSION = 4  # raise it when a field, a default or a refusal's text changes: nobody reads another

_NATIVE = (int, float, str, bytes, list[bytes])


class WrongVersionError(ValueError):
    """A message of server, client or service node is of another version; the text says which."""


class Wire(Ranged):
    """A dataclass that travels as one ``ConfigRecord``, with an entry for each field: of JSON, unless it is a
    number, a text, bytes or a list of bytes. Defaults are left out: Flower cannot count the bytes of an empty
    entry.
    """

    def to_record(self) -> ConfigRecord:
        """The message as a record."""
        values: dict[str, Any] = {"version": MESSAGE_VERSION}
        for name, (kind, default) in _entries(type(self)).items():
            if (value := getattr(self, name)) != default:
                text = getattr(value, "to_json", lambda value=value: json.dumps(_plain(value)))
                values[name] = value if kind in _NATIVE else text()
        return ConfigRecord(values)

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read what :meth:`to_record` wrote; WrongVersionError for another version, else ValueError."""
        if not isinstance(record, ConfigRecord):
            raise ValueError(f"a message is a ConfigRecord, got {type(record).__name__}")
        values: dict[str, Any] = dict(record)
        version, entries = values.pop("version", None), _entries(cls)
        if version != MESSAGE_VERSION and type(version) is int:
            raise WrongVersionError(
                f"version {version} of messages; this library knows version {MESSAGE_VERSION}: install the "
                "same shuffle-plugins everywhere"
            )
        needed = {name for name, (_, default) in entries.items() if default is MISSING}
        if version != MESSAGE_VERSION or not needed <= values.keys() <= entries.keys():
            raise ValueError(f"{cls.__name__} has the entries {sorted(entries)}, got {sorted(values)}")
        try:
            return cls(**{name: _entry(entries[name][0], value) for name, value in values.items()})
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a message of the kind {cls.__name__}") from error


def _fields(kind: type[Wire]) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each field."""
    found = {}
    for each in fields(cast(Any, kind)):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        found[each.name] = (_present(_hints(kind)[each.name]), default)
    return found


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_entries: Callable[[Any], dict[str, tuple[Any, Any]]] = cache(_fields)


def _present(kind: Any) -> Any:
    """The type of a value that is not None."""
    given = [each for each in get_args(kind) if each is not NoneType]
    return given[0] if get_origin(kind) in (Union, UnionType) and len(given) == 1 else kind


def _entry(kind: Any, value: Any) -> Any:
    if kind == list[bytes]:
        if type(value) is not list or not all(type(each) is bytes for each in value):
            raise ValueError("an entry is a list of byte strings")
        return value
    if kind in _NATIVE:
        if type(value) is not kind:
            raise ValueError(f"an entry is of type {kind.__name__}, got {type(value).__name__}")
        return value
    if type(value) is not str:
        raise ValueError("an entry is text")
    if kind is Spec:
        return spec_from_json(value)
    return kind.from_json(value) if hasattr(kind, "from_json") else _made(kind, json.loads(value))


def _plain(value: Any) -> Any:
    """A value as JSON has it: a dataclass by its fields, bytes as hexadecimal digits."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _made(kind: Any, value: Any) -> Any:
    """What :func:`_plain` had, from its type; ValueError or TypeError if it is of another."""
    if _present(kind) is not kind:
        return None if value is None else _made(_present(kind), value)
    inside = get_args(kind)
    if get_origin(kind) in (Union, UnionType):  # of dataclasses with different fields
        names = _of_type(dict, value).keys()
        [kind] = [each for each in inside if {one.name for one in fields(each)} == names]
    if get_origin(kind) is tuple:
        return tuple(_made(inside[0], each) for each in _of_type(list, value))
    if get_origin(kind) is dict:
        return {int(key): _made(inside[1], each) for key, each in _of_type(dict, value).items()}
    if is_dataclass(kind):
        entries = _of_type(dict, value).items()
        return cast(Any, kind)(**{name: _made(_hints(kind)[name], each) for name, each in entries})
    if kind is bytes:
        return bytes.fromhex(_of_type(str, value))
    if issubclass(kind, StrEnum):
        return kind(value)
    return float(value) if kind is float and type(value) is int else _of_type(kind, value)


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} is expected, got {value!r:.99}")
    return value


RECORD_KEY = "shuffle"  # of the ConfigRecord of an instruction, and of a reply
PAYLOAD_KEY = "payload"  # of the one entry of a reply: bytes, equally many in all replies of a round
DRAWN_KEY = "shuffle-record"  # of the ConfigRecord by which the mod tells the app which record it drew
ROLE = "shuffle-role"  # in ``node_config``, makes a node a service node

_LARGEST = (1 << 63) - 1  # the largest whole number that a ConfigRecord holds
_MOST_RECORDS = 10**6  # of a client; it trains once for each that it draws, and every order is drawn whole
_REPORT, _DUMMY = b"\x01", b"\x00"


class Role(StrEnum):
    """What a service node does; the value of :data:`ROLE` in its ``node_config``."""

    MIXER = "mixer"
    AGGREGATOR = "aggregator"

    @property
    def node(self) -> str:
        """What such a node is called in a log."""
        return "mix node" if self is Role.MIXER else "aggregator"

    @property
    def registered_by(self) -> str:
        """Name of the function by which a client app takes this role."""
        return f"register_{self.node.replace(' ', '_')}"

    @property
    def question(self) -> str:
        """Type of the message that asks a node whether it has this role."""
        return f"query.shuffle_{self}_role"

    @property
    def work(self) -> str:
        """Type of the message by which a round's envelopes come to such a node."""
        return f"query.shuffle_{self}_work"


QUERIES = frozenset(kind for role in Role for kind in (role.question, role.work))  # that they answer


LEVELS_KEY = "shuffle-levels"
"""Of the record in a ``train`` message that asks which of several ε0 is the largest that a client's limits
allow, and in the reply. A message of another type reaches no mod unless the app has a function for it."""


def role_of(node_config: Mapping[str, UserConfigValue]) -> Role | None:
    """What a node is by its own ``node_config``; None for a client."""
    value = node_config.get(ROLE)
    return Role(value) if isinstance(value, str) and value in set(Role) else None


class ClientRefusal(StrEnum):
    """Why a client refuses: the constant texts of its error replies, which hold no data.

    All but ``TRAINING_FAILED`` and ``INTERNAL`` follow from the request, the settings and the ledger alone.
    """

    NO_INSTRUCTION = "shuffle: this client trains in shuffled rounds only, and the message has no instruction"
    BAD_INSTRUCTION = "shuffle: the instruction is malformed"
    BAD_MODEL = "shuffle: the message must hold the model as its one ArrayRecord, with floating-point arrays"
    BAD_MECHANISM = "shuffle: this client cannot build the mechanism for this model"
    SEALED_SUM = (
        "shuffle: a client's share of a sum is not private by itself, and the server asks for it as a sealed "
        "report: it must use SharedSumStage or SummingStage"
    )
    PINNED = (
        "shuffle: this client has pinned mixers or aggregators, and sends nothing but what is sealed to them"
    )
    NOT_PINNED = (
        "shuffle: reports are sealed to mixers or aggregators that the client has pinned; set "
        "shuffle-mixer-public-key or shuffle-aggregator-public-keys, and shuffle-signing-key-file, in its "
        "node_config"
    )
    OTHER_PINNED = (
        "shuffle: the server's mixers or aggregators are not those that this client has pinned, or are in "
        "another order: the keys of the server's stage and shuffle-mixer-public-key or "
        "shuffle-aggregator-public-keys must be the same list"
    )
    NO_COUNTS = "shuffle: this mechanism has no whole-number counts that could be shared"
    SERVICE_NODE = (
        "shuffle: this node is a mix node or an aggregator (shuffle-role in its node_config), unknown to the "
        "server: ShuffleStrategy needs shuffler=MixNodeStage(mixer_public_key=...) or "
        "SharedSumStage(aggregator_public_keys=...)"
    )
    BAD_SETTINGS = "shuffle: the client's node_config is not valid; the client's own log says why"
    NOT_ALLOWED = (
        "shuffle: this client answers no message of this type without protection. Ask privately: queries by "
        "QueryGrid, evaluations by ShuffleStrategy(evaluation=PrivateEvaluation(...)). To allow unprotected "
        "answers, set shuffle-allow-evaluate=true in its node_config, or the same of query, get-parameters "
        "or get-properties; in a simulation ShuffleMod(allow=['evaluate'])"
    )
    OTHER_METRICS = (
        "shuffle: the server asks for other metrics, ranges or bins than this client agrees to "
        "(ShuffleMod(metrics=...))"
    )
    NO_LIMITS = (
        "shuffle: the client has no limits; set shuffle-max-local-epsilon in its node_config, or, in a "
        "simulation, ShuffleMod(limits=ClientLimits(max_local_epsilon=..., max_rounds=...))"
    )
    NO_TOTAL = (
        "shuffle: the client has no limit over all its rounds; set shuffle-max-rounds or "
        "shuffle-max-total-local-epsilon in its node_config (with a pinned key shuffle-max-epsilon and "
        "shuffle-delta are enough), or, in a simulation, ShuffleMod(limits=ClientLimits(max_rounds=..., ...))"
    )
    NO_LEDGER = "shuffle: the client's node_config sets limits, and no shuffle-ledger-file to count in"
    LOCAL_DELTA = "shuffle: the mechanism's local delta exceeds shuffle-max-local-delta"
    BAD_SIGNING_KEY = "shuffle: the client's signing key cannot be read"
    LEDGER = "shuffle: the client's ledger cannot be used"
    MAX_LOCAL_EPSILON = "shuffle: the round's local epsilon exceeds the client's limit"
    NO_SUMS = (
        "shuffle: a share of this sum has no finite local epsilon; a client agrees to such sums by "
        "shuffle-max-local-epsilon=inf with shuffle-max-epsilon and shuffle-delta"
    )
    NOT_SUMMED = (
        "shuffle: this client agrees to sums alone (shuffle-max-local-epsilon=inf), not to reports by "
        "themselves; to those it agrees by a finite shuffle-max-local-epsilon"
    )
    MAX_ROUNDS = "shuffle: the client has taken part in as many rounds as it agrees to"
    MAX_TOTAL = "shuffle: the round would exceed the client's total local epsilon"
    FEW_REPORTS = "shuffle: the server promises fewer reports in a round than shuffle-min-reports"
    SEPARATION = (
        "shuffle: the client took part in this series of windows too few rounds ago (shuffle-min-separation, "
        "or the length of a window)"
    )
    MAX_EPSILON = "shuffle: the round could take the client's certified epsilon over its shuffle-max-epsilon"
    TOKEN_SPENT = "shuffle: this round was answered before, or another node counts in the same ledger file"
    TRAINING_FAILED = "shuffle: training failed on the client"
    INTERNAL = "shuffle: the client failed; its own log says why"


@dataclass(frozen=True, kw_only=True)
class WindowPlace(Ranged):
    """Which window a round opens, of a ``WindowedSum``: as of :class:`WindowTerms`."""

    series: Annotated[bytes, byte_string(32)]
    index: Annotated[int, whole_number(at_least=0, at_most=_LARGEST)]


@dataclass(frozen=True, kw_only=True)
class SharedTerms(Ranged):
    """How a round's counts are shared between the server and aggregators.

    Attributes:
        check_seed: of the check of the sum, new for each round, or for each series of windows. Aggregators
            must not know it.
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
        self, instruction: Instruction, mechanism: PrivateSum, *, dim: int, aggregators: Sequence[bytes]
    ) -> SumTerms:
        """What all parties must know, ``aggregators`` in the server's order; ValueError without counts."""
        counts, window = mechanism.counts, instruction.window_of(mechanism)
        if counts is None:
            raise ValueError("the clients of this round were not told to share their counts")
        largest = counts.highest - counts.lowest
        terms: dict[str, Any] = {
            "context": context_of(instruction, dim=dim),
            "layout": ResidueLayout.of_sum(size=counts.size, largest=largest, clients=self.clients),
            "aggregators": tuple(aggregators),
        }
        if isinstance(mechanism, WindowedSum) and window is not None:
            fixed = instruction.mechanism.fingerprint(dim=dim) + self.check_seed
            highest = sum(mechanism.coefficients) * mechanism.data_highest + mechanism.coins_highest
            terms["window"] = WindowTerms(
                series=window.series,
                index=window.index,
                coefficients=mechanism.coefficients,
                fixed=hashlib.sha256(b"flwr_shuffle series\n" + fixed).digest(),
            )
            terms["layout"] = ResidueLayout.of_sum(
                size=mechanism.dim, largest=highest, clients=self.clients, vectors=2
            )
        return VerifiedTerms(**terms, largest=largest) if self.verified else SumTerms(**terms)


def digest_of(aggregators: Sequence[bytes]) -> bytes:
    """Digest of aggregators' public keys to seal to, 32 bytes; it depends on their order."""
    return hashlib.sha256(b"flwr_shuffle aggregators\n" + b"".join(aggregators)).digest()


@dataclass(frozen=True, kw_only=True)
class Instruction(Wire):
    """What a server asks of every client it invites to a round; all of them must get the same.

    Attributes:
        token: new for each attempt at a round.
        participation: probability with which a client takes part. Otherwise it sends a dummy, or, to a sum, a
            share of the zero vector.
        analyzer_key: public X25519 key to which reports are sealed; empty for unsealed payloads.
        minimum: fewest reports that are let through together. Sealed reports are bound to it.
        metrics: what is reported of an evaluation or a query; empty in training.
        window: which window of sums is opened; None where the round's own sum is, or its reports are.
        records_per_client, samples_per_client: as of :class:`Updates`; the client sends a report on each
            record that it draws.
    """

    token: Annotated[bytes, byte_string(TOKEN_BYTES)]
    run: Annotated[str, text_of(128)]
    server_round: Annotated[int, whole_number(at_least=0, at_most=_LARGEST)]
    mechanism: Annotated[Spec, of_kind(Spec, "a Spec")]
    participation: Annotated[float, in_range(above=0, at_most=1)] = 1.0
    analyzer_key: Annotated[bytes, byte_string(0, KEY_BYTES)] = b""
    minimum: Annotated[int, whole_number(at_least=2, at_most=_LARGEST)] = 2
    metrics: tuple[Metric, ...] = ()
    update: UpdateTerms = field(default_factory=UpdateTerms)
    mixers: Count = 1
    shared: SharedTerms | None = None
    window: WindowPlace | None = None
    records_per_client: Annotated[int, whole_number(at_most=_MOST_RECORDS)] = 1
    samples_per_client: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metrics(self.metrics)
        if self.mixers > 1 and not self.sealed:
            raise ValueError("a mix cascade takes sealed reports: there is an analyzer's key")
        if self.shared and self.sealed:
            raise ValueError("counts are shared, and not sealed to an analyzer")
        checks.whole("samples_per_client", self.samples_per_client, at_most=self.records_per_client)
        if self.draws_records and (self.metrics or self.mechanism.must_be_summed):
            raise ValueError("records are drawn in training, for reports that need no sum")
        if self.reports_per_client > 1 and self.mixers > 1:
            raise ValueError("clients that send several reports each need a single mixer, not a mix cascade")

    @property
    def reports_per_client(self) -> int:
        """Reports in every client's reply, which are shuffled each by itself."""
        return self.samples_per_client * self.mechanism.reports_per_client

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

    def window_of(self, mechanism: PrivateSum) -> WindowPlace | None:
        """The window to open; ValueError for a WindowedSum without: its rounds' own sums have no noise."""
        if isinstance(mechanism, WindowedSum) != (self.window is not None):
            raise ValueError("the rounds of a WindowedSum, and no others, open a window of a series")
        return self.window

    def report_dim(self, model_dim: int) -> int:
        """Length of the vector that is reported: the model's update and its bits, or the metrics."""
        return size_of(self.metrics) or model_dim + self.update.bits


def instruction_of(message: Message) -> Instruction | None:
    """The instruction in a message; None without one, ValueError for one that cannot be read."""
    if not message.has_content() or RECORD_KEY not in message.content:
        return None
    return Instruction.from_record(message.content[RECORD_KEY])


def type_of(message: Message) -> str:
    """What a message asks for, of Flower's ``MessageType``, without the name of a function behind it."""
    return message.metadata.message_type.partition(".")[0]


def context_of(instruction: Instruction, *, dim: int) -> RoundContext:
    """What envelopes of this round are bound to: the whole instruction, and :meth:`Instruction.report_dim`.
    If a server told one client another round than the others, that client's envelope would be refused.
    """
    asked = repr(sorted(instruction.to_record().items())).encode()
    fingerprint = instruction.mechanism.fingerprint(dim=dim)
    digest = hashlib.sha256(b"flwr_shuffle round\n" + fingerprint + asked).digest()
    return RoundContext(
        run=instruction.run,
        token=instruction.token,
        fingerprint=digest,
        minimum=instruction.minimum,
        reports=instruction.reports_per_client,
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
    """The payload of a reply; empty if the message is an error, or has anything but one payload."""
    if message.has_content() and list(message.content) == [RECORD_KEY]:
        record = message.content[RECORD_KEY]
        if isinstance(record, ConfigRecord) and list(record) == [PAYLOAD_KEY]:
            payload = record[PAYLOAD_KEY]
            if isinstance(payload, bytes):
                return payload
    return b""


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
    """The place, from 0 to m − 1, of the record on which a client app is to train on this message, with
    ``Updates(records_per_client=m)``; ValueError if no record was drawn.

    What the app returns may depend on that record alone and on the message: not on other records, nor on what
    it kept of earlier calls. A client with fewer than m records returns the model as it is for the places
    that it lacks, or raises.
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
    """The content with records of its own, whose values are shared."""
    kept: dict[str, Any] = dict(content.items())
    return RecordDict({key: type(record)(dict(record.items())) for key, record in kept.items()})


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
    """What a service node says of itself, signed for a challenge and as one node of a run: the key to which
    clients seal, which the server never passes on to them, and the fewest reports that it gives out.
    """

    public_key: Annotated[bytes, byte_string(KEY_BYTES)]
    minimum: Annotated[int, whole_number(at_least=2)]
    signature: bytes

    @classmethod
    def signed(cls, service: BatchService, *, challenge: bytes, run: str, node: int) -> Self:
        """The role of a service."""
        unsigned = cls(public_key=service.public_key.sealing, minimum=service.minimum, signature=b"")
        said = unsigned._statement(role=Role(service.role), challenge=challenge, run=run, node=node)
        return cls(public_key=unsigned.public_key, minimum=unsigned.minimum, signature=service.sign(said))

    def holds(self, *, role: Role, challenge: bytes, run: str, node: int, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this role for this challenge."""
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
        refusal: why there is nothing else.
        said: what a mixer has signed of a batch.
        items: what came out of a mixer, or a part of it.
        total: what the seeds or the verified shares add up to.
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

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """Digest of the request, 32 bytes."""

    def declined(self, code: Refusal, rejected: Mapping[int, Refusal]) -> bytes:
        """What the node signs if it gives nothing back."""
        return refusal_statement(request=self.digest, code=code, rejected=rejected)

    def refused(self, refused: BatchRefused, *, service: BatchService) -> Answer:
        """The signed answer that there is nothing for this request."""
        signature = service.sign(self.declined(refused.code, refused.rejected))
        rejected = dict(refused.rejected)
        return Answer(token=self.token, rejected=rejected, refusal=refused.code, signature=signature)

    @abstractmethod
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
        """A node's answer, signed for this very request, with what was asked for.

        BatchRefused with the node's own code and the envelopes it dropped; WRONG_ROUND for an answer to
        another round; NOT_PROVEN if it is not signed for this request or has other items. ValueError for
        anything else.
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

    @property
    @override
    def digest(self) -> bytes:
        return self.request.digest()

    @override
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
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
    """What an aggregator does: say which envelopes are not good and answer about proofs, or add them up."""

    CHECK = "check"
    ADD = "add"


@dataclass(frozen=True, kw_only=True)
class AggregateRequest(ServiceRequest):
    """A round's sealed seeds, on their way to one aggregator.

    Attributes:
        terms: what the aggregators have to agree on.
        minimum: fewest clients of which the server wants a sum.
        commitments, envelopes: of each client, the digest of its share, and its seed sealed to this
            aggregator.
        verify_key: for proofs to be verified; empty otherwise.
        messages: of clients whose proofs hold, their verifier messages.
    """

    step: Step
    terms: SumTerms | VerifiedTerms
    minimum: Annotated[int, whole_number(at_least=2)]
    commitments: list[bytes]
    envelopes: list[bytes]
    verify_key: Annotated[bytes, byte_string(0, SEED_SIZE)] = b""
    messages: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        proven = self.step if isinstance(self.terms, VerifiedTerms) else None
        messages = self.count if proven is Step.ADD else 0
        found = len(self.commitments), bool(self.verify_key), len(self.messages)
        if found != (self.count, proven is Step.CHECK, messages):
            raise ValueError(f"what comes with the envelopes does not go with the step {self.step}")

    @property
    @override
    def token(self) -> bytes:
        return self.terms.context.token

    @property
    @override
    def count(self) -> int:
        return len(self.envelopes)

    @property
    def sealed(self) -> list[Sealed]:
        """What an aggregator takes of each client."""
        return list(map(Sealed, self.commitments, self.envelopes))

    @cached_property
    @override
    def digest(self) -> bytes:
        return aggregation_digest(
            step=self.step,
            terms=self.terms,
            minimum=self.minimum,
            commitments=self.commitments,
            envelopes=self.envelopes,
            further=[self.verify_key, *self.messages] if isinstance(self.terms, VerifiedTerms) else (),
        )

    def said(self, answer: Answer) -> bytes:
        """What the aggregator signs of its answer."""
        given = answer.shares if self.step is Step.CHECK else (answer.total,)
        return answer_statement(request=self.digest, rejected=answer.rejected, given=given)

    @override
    def read(self, content: RecordDict, *, verifying_key: bytes) -> Answer:
        answer = self._answer(content, verifying_key)
        if not has_signed(verifying_key, answer.signature, self.said(answer)):
            raise BatchRefused(Refusal.NOT_PROVEN)
        proven = isinstance(self.terms, VerifiedTerms)
        if self.step is Step.CHECK:
            if len(answer.shares) != (self.count - len(answer.rejected) if proven else 0):
                raise ValueError("there is an answer about each proof of a good envelope")
        elif answer.rejected:
            raise ValueError("all clients that are asked for are added up, or none")
        elif not proven:
            Residues.from_bytes(answer.total, layout=self.terms.opened)
        return answer
