"""A Flower mod that lets one randomised report of each round leave a client, and nothing else.

The operator of a node writes its ``node_config``. The app's code, with the arguments of ``ShuffleMod(...)``,
comes with the run. If both set a limit, the stricter one holds. Messages from the server set no limits.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict, UserConfigValue
from flwr.clientapp.typing import ClientAppCallable

# Flower has no public address for these two: the server's id, and whose messages this process makes.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from torch import Tensor

from flwr_shuffle.messages import (
    LEVELS_KEY,
    QUERIES,
    RECORD_KEY,
    ROLE,
    ClientRefusal,
    Instruction,
    Role,
    Unable,
    context_of,
    digest_of,
    instruction_of,
    plain_payload,
    refusal,
    reply,
    role_of,
    type_of,
    with_record,
)
from flwr_shuffle.metrics import Metric, MetricKind, metrics_of, size_of, vector_of
from flwr_shuffle.updates import Layout, of_kind
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import Reports
from shuffle_plugins.core.checks import Flag, Ranged, in_range
from shuffle_plugins.ledger import ClientLedger, LedgerError, ReportRefused
from shuffle_plugins.ledger import ClientLimits as ClientLimits
from shuffle_plugins.ledger.client import Charged, InWindow, Refused, written
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.mechanisms.base import SeveralReports
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.randomness import SecureRandomness
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS
from shuffle_plugins.secure_aggregation import SumTerms, VerifiedTerms, seal_seed, share, share_with_proof
from shuffle_plugins.shuffler import Refusal, ShuffleError, keys
from shuffle_plugins.shuffler.envelopes import seal
from shuffle_plugins.shuffler.keys import SigningKey

_log = logging.getLogger("flwr")

_ASKING = (MessageType.EVALUATE, MessageType.QUERY)  # messages that may ask for metrics


def _on_failure(name: str, value: object) -> object:
    if value not in ("hide", "error"):
        raise ValueError(f'{name} must be "hide" or "error", got {value!r}')
    return value


def _allowed(name: str, value: Any) -> frozenset[str]:
    allowed = frozenset([value] if isinstance(value, str) else value)
    if not allowed <= set(UNPROTECTED):
        raise ValueError(f"{name} names types of messages of {UNPROTECTED}, got {sorted(allowed)}")
    return allowed


def _agreed_metrics(name: str, value: Any) -> frozenset[Metric]:
    del name
    return value if isinstance(value, frozenset) else frozenset(metrics_of(value))


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffleMod(Ranged):
    """Replaces what training returns by one ε0-LDP report of the update, of fixed size.

    It must be the app's first mod, ``ClientApp(mods=[ShuffleMod(), …])``: the first is the outermost and sees
    what leaves the client. It charges the client's ledger before it trains: a crash costs budget, never
    privacy. An ``evaluate`` or ``query`` message with an instruction is answered the same way, with metrics
    in place of the update; messages without one are refused. docs/guides/flower.md lists the keys of
    ``node_config``.

    Args:
        limits: limits set by the app, for all clients; of these and ``node_config``'s the stricter hold. On a
            SuperNode its operator's must be complete.
        max_local_delta: largest δ0; needed here or in ``node_config`` for Gaussian noise.
        on_failure: what to answer when training fails, or returns something else than the model's arrays, or
            NaN. ``"hide"`` sends a report that looks like any other and leaves the model where it is: whether
            a client fails depends on its data, so a missing report would tell one bit of it. ``"error"``
            answers with a constant error, which says that this client failed.
        allow: types of messages that the app answers without protection, of ``"evaluate"``, ``"query"``,
            ``"get_parameters"`` and ``"get_properties"``. For simulations: it has no effect on a SuperNode.
        metrics: what the app answers evaluations and queries with, as a :class:`QueryGrid` asks for it; those
            for other metrics, ranges or bins are refused. None answers all, within the limits.
        node_config: for simulations, too: what a node's ``node_config`` has besides Flower's own entries, by
            the node's context, such as :class:`SimulatedNodes` says. It may set limits without a ledger file.
    """

    limits: Annotated[ClientLimits, of_kind(ClientLimits, "ClientLimits(…)")] | None = None
    max_local_delta: Annotated[float, in_range(at_least=0, below=1)] | None = None
    on_failure: Annotated[Literal["hide", "error"], _on_failure] = "hide"
    allow: Annotated[Iterable[str], _allowed] = ()
    metrics: Annotated[Mapping[str, MetricKind | tuple[float, float]], _agreed_metrics] | None = None
    node_config: (
        Annotated[
            Callable[[Context], Mapping[str, UserConfigValue]],
            of_kind(Callable, "a function of a node's context"),
        ]
        | None
    ) = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message; see the class."""
        begun, node = time.monotonic(), context
        try:
            try:
                node = self._configured(context)
                if not self._passes(message, node):
                    return self._answer(message, node, call_next, begun=begun, by_app=node is not context)
            except ClientRefused as refused:
                if refused.code is ClientRefusal.TRAINING_FAILED:
                    count_outcome(node, failed=True)
                _log.warning("%s%s", refused, f" ({refused.__cause__})" if refused.__cause__ else "")
                return refusal(str(refused.code), to=message)
            except Exception:
                _log.exception("The shuffle mod failed; the server is told no more than that.")
                return refusal(str(ClientRefusal.INTERNAL), to=message)
            return call_next(message, node)
        finally:
            context.state = node.state

    def _configured(self, context: Context) -> Context:
        """The context with what the app says of a node, if it is a simulated one."""
        configured = has_operator() or any(key.startswith(PREFIX) for key in context.node_config)
        if self.node_config is None or configured:
            return context
        try:
            given = dict(self.node_config(context))
        except Exception as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
        if any(key.startswith(PREFIX) for key in given):  # or else the app's ``allow`` would not count
            allowed = {f"{PREFIX}allow-{kind.replace('_', '-')}": True for kind in self.allow}
            given = allowed | given
        return replace(context, node_config={**context.node_config, **given})

    def _passes(self, message: Message, context: Context) -> bool:
        """Whether the app answers by itself: a service node its queries, a client what is allowed."""
        kind, is_query = type_of(message), message.metadata.message_type in QUERIES
        if role_of(context.node_config) is not None:
            if not is_query:
                raise ClientRefused(ClientRefusal.SERVICE_NODE)
            return True
        private = kind in _ASKING and message.has_content() and RECORD_KEY in message.content
        if private or is_query or kind == MessageType.TRAIN:
            return False
        allowed: Iterable[str] = self.allow
        if has_operator() or any(key.startswith(PREFIX) for key in context.node_config):
            own = ClientSettings.read(context.node_config)
            allowed = [each for each in UNPROTECTED if getattr(own, f"allow_{each}")]
        if kind not in allowed:
            raise ClientRefused(ClientRefusal.NOT_ALLOWED)
        return True

    def _answer(
        self, message: Message, context: Context, call_next: ClientAppCallable, *, begun: float, by_app: bool
    ) -> Message:
        if message.has_content() and LEVELS_KEY in message.content:
            return self._level(message, context, by_app=by_app)
        if message.metadata.message_type in QUERIES:
            if ROLE in context.node_config:
                known = " or ".join(repr(str(role)) for role in Role)
                _log.error("shuffle: %s in node_config is %s, got %r", ROLE, known, context.node_config[ROLE])
            return Message(Unable(code=Refusal.NOT_THIS_ROLE).to_content(), reply_to=message)
        task = self._agreed(message, context, by_app=by_app)
        if task.reply_seconds is None:
            payload, failed = self._payload(task, message, context, call_next)
        else:
            due = begun + task.reply_seconds
            payload, failed = self._payload_in_time(task, message, context, call_next, due=due)
        count_outcome(context, failed=failed)
        return reply(payload, to=message)

    def _level(self, message: Message, context: Context, *, by_app: bool) -> Message:
        """The largest of the offered ε0 that the limits allow, or 0.0; nothing here depends on data."""
        record = message.content[LEVELS_KEY]
        told = record.get("levels") if isinstance(record, ConfigRecord) else None
        offered = [level for level in told if isinstance(level, float)] if isinstance(told, list) else []
        if not offered:
            raise ClientRefused(ClientRefusal.BAD_INSTRUCTION)
        settings = ClientSettings.of(
            context.node_config, limits=self.limits, max_local_delta=self.max_local_delta, by_app=by_app
        )
        most = settings.max_local_epsilon
        sums = settings.agrees_to_sums_alone  # and then to no report by itself, whatever its ε0
        allowed = [level for level in offered if not sums and level <= (most or 0.0)]
        answer = ConfigRecord({"level": float(max(allowed, default=0.0))})
        return Message(RecordDict({LEVELS_KEY: answer}), reply_to=message)

    def _agreed(self, message: Message, context: Context, *, by_app: bool) -> _Task:
        """What to do in a round, once it is checked and charged; nothing here depends on client data."""
        try:
            instruction = instruction_of(message)
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_INSTRUCTION) from error
        if instruction is None:
            raise ClientRefused(ClientRefusal.NO_INSTRUCTION)
        if (type_of(message) in _ASKING) != bool(instruction.metrics):
            raise ClientRefused(ClientRefusal.BAD_INSTRUCTION)
        if self.metrics is not None and not set(instruction.metrics) <= cast(frozenset[Metric], self.metrics):
            raise ClientRefused(ClientRefusal.OTHER_METRICS)
        if instruction.sealed and instruction.mechanism.must_be_summed:
            raise ClientRefused(ClientRefusal.SEALED_SUM)
        settings = ClientSettings.of(
            context.node_config, limits=self.limits, max_local_delta=self.max_local_delta, by_app=by_app
        )
        try:
            nothing, read = _reader(message, context, instruction)
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_MODEL) from error
        dim = instruction.report_dim(len(nothing))
        try:
            mechanism = instruction.mechanism.build(dim=dim)
            pack = _packing(settings, instruction, mechanism, dim=dim)
        except ClientRefused:
            raise
        except Exception as error:  # a mechanism may come from any package
            raise ClientRefused(ClientRefusal.BAD_MECHANISM) from error
        if mechanism.local_delta > (settings.max_local_delta or 0):
            raise ClientRefused(ClientRefusal.LOCAL_DELTA)
        if not instruction.metrics:
            nothing = instruction.update.mark(instruction.token, mechanism).to(nothing.dtype)
        participation = instruction.participation if instruction.shared else 1  # else its share is seen
        shuffled = _promised(
            instruction.mechanism, dim, instruction.minimum, participation, instruction.samples_per_client
        )
        charge(context, settings, instruction, mechanism, shuffled=shuffled)
        return _Task(nothing, read, mechanism, instruction, pack, settings.reply_seconds)

    def _payload(
        self, task: _Task, message: Message, context: Context, call_next: ClientAppCallable
    ) -> tuple[bytes, bool]:
        """What is sent of the app's answers, and whether the app failed."""
        takes_part, reports, failed = _coin(task.instruction.participation), [], False
        for asked in task.messages(message):
            try:
                answer = call_next(asked, context)
                if answer.has_error():
                    raise ValueError(f"the app answered with an error: {answer.error.reason}")
                reports.append(task.report(task.read(answer), takes_part=takes_part))
            except (KeyboardInterrupt, _TooLate):
                raise
            except BaseException as error:  # SystemExit or a cancelled task: a missing reply would tell of it
                failed = True
                if self.on_failure == "error":
                    _log.exception("Training failed; the server is told no more than that.")
                    raise ClientRefused(ClientRefusal.TRAINING_FAILED) from error
                _log.exception(
                    "The app failed; a report goes out that looks like any other (while testing, "
                    'ShuffleMod(on_failure="error") stops here instead).'
                )
                # Of this record alone: what the others' reports are must not depend on it.
                reports.append(task.report(task.nothing, takes_part=takes_part))
        return task.payload(reports, takes_part=takes_part), failed

    def _payload_in_time(
        self, task: _Task, message: Message, context: Context, call_next: ClientAppCallable, *, due: float
    ) -> tuple[bytes, bool]:
        """The payload at the moment when it is due; and whether the app failed, or was late."""
        assert task.reply_seconds is not None
        reply_seconds = task.reply_seconds
        made: list[tuple[bytes, bool]] = []
        failures: list[BaseException] = []

        def work() -> None:
            try:
                made.append(self._payload(task, message, context, call_next))
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=copy_context().run, args=(work,), daemon=True)
        thread.start()
        _join(thread, until=due - reply_seconds / 2)
        # What is sent instead takes time, with a range proof a lot: it is made only if it may be needed, and
        # early enough not to be late itself, which would tell that training was not done.
        instead = task.payload_of_nothing() if thread.is_alive() or failures else b""
        _join(thread, until=due)
        late = thread.is_alive()
        _sleep(until=due)
        if late or (failures and isinstance(failures[0], ClientRefused)):
            if late:
                # at its next instruction of Python; a single call into a library it still finishes
                ident, ends = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TooLate)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ends)
                _log.warning("Training was not done when the reply was due; it counts as failed.")
            if self.on_failure == "error":
                raise ClientRefused(ClientRefusal.TRAINING_FAILED)
            return instead or task.payload_of_nothing(), True
        if failures:
            raise failures[0]
        return made[0]


class _TooLate(SystemExit):
    """Ends the thread of training whose reply has left."""


@dataclass(frozen=True)
class _Task:
    """A round that the client has agreed to and was charged for.

    ``read`` takes a report's vector from the app's answer, or raises: then ``nothing`` is reported. ``pack``
    makes a payload of the client's reports, or of None for a dummy, of the same length.
    """

    nothing: Tensor
    read: Callable[[Message], Tensor]
    mechanism: PrivateSum
    instruction: Instruction
    pack: Callable[[Reports | None], bytes]
    reply_seconds: float | None

    def messages(self, message: Message) -> Iterator[Message]:
        """What the app is called with: the message, or a copy for each record that is drawn here."""
        if not self.instruction.draws_records:
            yield message
            return
        order = SecureRandomness().permutation(self.instruction.records_per_client)
        for place in order[: self.instruction.samples_per_client].tolist():
            yield with_record(message, place)

    def report(self, vector: Tensor, *, takes_part: bool) -> Reports:
        """The report of a vector (dim,), or, to a sum, of zeros with its noise for who takes no part."""
        vector = self.instruction.update.prepared(vector, self.mechanism)
        if self.mechanism.must_be_summed:
            vector = vector * takes_part  # the same work either way
        return self.mechanism.randomize(vector.unsqueeze(0), clip=True)

    def payload(self, reports: Sequence[Reports], *, takes_part: bool) -> bytes:
        """A payload with all reports of the client, or with a dummy; a sum needs everybody's noise."""
        sent = takes_part or self.mechanism.must_be_summed
        return self.pack(Reports.concat(reports) if sent else None)

    def payload_of_nothing(self) -> bytes:
        """A payload with as many reports of zeros."""
        takes_part = _coin(self.instruction.participation)
        count = self.instruction.samples_per_client
        reports = [self.report(self.nothing, takes_part=takes_part) for _ in range(count)]
        return self.payload(reports, takes_part=takes_part)


def _reader(
    message: Message, context: Context, instruction: Instruction
) -> tuple[Tensor, Callable[[Message], Tensor]]:
    """Zeros, and a reader of what the app answered: the weighed change of the model's arrays, or metrics."""
    records = message.content.array_records
    if len(records) != 1 and type_of(message) != MessageType.QUERY:
        raise ClientRefused(ClientRefusal.BAD_MODEL)
    if instruction.metrics:
        failed = failed_share(context)
        return torch.zeros(size_of(instruction.metrics)), lambda answer: vector_of(
            instruction.metrics, answer.content, failed_share=failed
        )
    [(key, record)] = records.items()
    arrays = dict(record)  # apps may empty a record as they read it
    layout = Layout.of(arrays, trained=instruction.update.trained)
    before = layout.flatten(arrays)

    def read(answer: Message) -> Tensor:
        records = answer.content.array_records
        if key not in records and len(records) != 1:
            raise ValueError(f"training returned {len(records)} ArrayRecords and none under {key!r}")
        returned = records[key] if key in records else next(iter(records.values()))
        return layout.flatten(returned).sub_(before).mul_(instruction.update.weight(answer.content))

    return torch.zeros_like(before), read


def _join(thread: Thread, *, until: float) -> None:
    thread.join(max(0.0, until - time.monotonic()))


def _sleep(*, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)


@lru_cache(maxsize=64)
def _promised(spec: Spec, dim: int, minimum: int, participation: float, samples: int) -> str | None:
    """The round of as few reports as are promised, as text; None if it has no known cost."""
    # More cost no less (Lemma 5 of docs/proofs/accounting.md), and no server makes a client compute for long.
    reports = min(minimum, 10**8) if spec.cohort is None else spec.cohort
    if minimum < reports:
        return None
    try:
        mechanism = spec.build(dim=dim)
        if mechanism.must_be_summed and participation < 1:
            return written(mechanism.secret_round(answered=reports, participation=participation))
        sent = mechanism if samples == 1 else SeveralReports(mechanism, samples)
        return written(sent.round(population=reports, cohort=reports, sampling=Sampling.FULL))
    except (ValueError, OverflowError):
        return None


def _coin(probability: float) -> bool:
    """True with this probability, rounded down to a multiple of 2**-62, from the system's entropy."""
    if probability == 1:
        return True
    threshold = torch.tensor([int(probability * (1 << PROBABILITY_BITS))])
    return bool(SecureRandomness().bernoulli(threshold))


def _packing(
    settings: ClientSettings, instruction: Instruction, mechanism: PrivateSum, *, dim: int
) -> Callable[[Reports | None], bytes]:
    """How this client packs its report; all refusals come now, as the round is charged before it is used."""
    shared, size = instruction.shared, instruction.mechanism.report_bytes(dim=dim)
    try:
        instruction.window_of(mechanism)
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_INSTRUCTION) from error
    if shared is None and not instruction.sealed:
        if settings.pins:
            raise ClientRefused(ClientRefusal.PINNED)
        whole = size * instruction.reports_per_client
        return lambda reports: plain_payload(_bytes(reports), size=whole)
    pinned = settings.aggregator_public_keys if shared else settings.mixer_public_key
    if not pinned or settings.signing_key_file is None:
        raise ClientRefused(ClientRefusal.NOT_PINNED)
    if digest_of(pinned) != shared.aggregators if shared else len(pinned) != instruction.mixers:
        raise ClientRefused(ClientRefusal.OTHER_PINNED)
    try:
        signing_key = keys.read_signing_key(settings.signing_key_file)
    except ShuffleError as error:
        raise ClientRefused(ClientRefusal.BAD_SIGNING_KEY) from error
    try:
        if shared is not None:
            if mechanism.counts is None or not mechanism.must_be_summed:
                raise ClientRefused(ClientRefusal.NO_COUNTS)  # who sits out must send noise, not a dummy
            terms = shared.of_round(instruction, mechanism, dim=dim, aggregators=pinned)
            return _sharing(terms, mechanism, check_seed=shared.check_seed, signing_key=signing_key)
        context = context_of(instruction, dim=dim)
        pack = partial(
            seal,
            size=size,
            context=context,
            analyzer_key=instruction.analyzer_key,
            mixer_key=pinned,
            signing_key=signing_key,
        )
        pack(None)
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_INSTRUCTION) from error
    return lambda reports: pack(_bytes(reports))


def _sharing(
    terms: SumTerms, mechanism: PrivateSum, *, check_seed: bytes, signing_key: SigningKey
) -> Callable[[Reports | None], bytes]:
    """The client's share, then what is sealed to each aggregator. There are no dummies: None is all zeros."""
    counts, pinned = mechanism.counts, terms.aggregators
    assert counts is not None
    if isinstance(terms, VerifiedTerms):
        _ = terms.prio3  # refuses vectors that it has no proof for

    def sealed(secrets: Iterable[bytes], data: bytes) -> list[bytes]:
        return [
            seal_seed(secret, terms=terms, share=data, aggregator_key=key, signing_key=signing_key)
            for secret, key in zip(secrets, pinned, strict=True)
        ]

    def pack(report: Reports | None) -> bytes:
        mine: NDArray[np.int64] = np.zeros(counts.size, np.int64)
        if report is not None:
            mine = mechanism.total(report).cpu().numpy() - counts.lowest
        if isinstance(terms, VerifiedTerms):
            data, secrets = share_with_proof(mine, terms=terms)
        else:
            split = share(mine, layout=terms.layout, aggregators=len(pinned), check_seed=check_seed)
            data, secrets = split.share.to_bytes(), split.seeds
        return b"".join([data, *sealed(secrets, data)])

    sealed(
        [b""] * len(pinned), b""
    )  # of nothing: a share with its proof takes as long as the rest of a round
    return pack


def _bytes(reports: Reports | None) -> bytes | None:
    """The reports one after another, each as it would be sent by itself."""
    return None if reports is None else b"".join(reports.each_to_bytes())


PREFIX = "shuffle-"  # of every key of this package in a ``node_config``

UNPROTECTED = ("evaluate", "query", "get_parameters", "get_properties")  # what an operator may allow


class ClientRefused(Exception):
    """A client does not take part in a round; the text of its ``code`` is what the server gets."""

    def __init__(self, code: ClientRefusal) -> None:
        super().__init__(code)
        self.code = code


def _path(name: str, value: object) -> Path:
    if isinstance(value, Path):
        return value
    if type(value) is not str or not value:
        raise ValueError(f"{name} is the path of a file, got {value!r}")
    return Path(value).expanduser()


def _pinned(name: str, value: Any) -> tuple[bytes, ...]:
    del name
    return value if isinstance(value, tuple) else tuple(key.sealing for key in keys.parse_mix_cascade(value))


@dataclass(frozen=True, kw_only=True)
class ClientSettings(ClientLimits):
    """What one client agrees to, and where its ledger and keys are: the keys of its ``node_config``. Of
    pinned public keys the parts to seal to are kept, 32 bytes each, in their order.
    """

    max_local_delta: Annotated[float, in_range(at_least=0, below=1)] | None = None
    ledger_file: Annotated[Path, _path] | None = None
    reply_seconds: Annotated[float, in_range(above=0, at_most=604_800)] | None = None  # a week
    mixer_public_key: Annotated[tuple[bytes, ...], _pinned] = ()
    aggregator_public_keys: Annotated[tuple[bytes, ...], _pinned] = ()
    signing_key_file: Annotated[Path, _path] | None = None
    allow_evaluate: Flag = False
    allow_query: Flag = False
    allow_get_parameters: Flag = False
    allow_get_properties: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pins != (self.signing_key_file is not None):
            raise ValueError(
                f"{PREFIX}signing-key-file goes together with {PREFIX}mixer-public-key or "
                f"{PREFIX}aggregator-public-keys"
            )

    @property
    def pins(self) -> bool:
        """Whether the operator has pinned mixers' or aggregators' keys."""
        return bool(self.mixer_public_key or self.aggregator_public_keys)

    @classmethod
    def read(cls, node_config: Mapping[str, UserConfigValue]) -> Self:
        """What a node's operator wrote; BAD_SETTINGS for a value out of range, and for an unknown key."""
        known = {f"{PREFIX}{each.name.replace('_', '-')}": each.name for each in fields(cls)}
        own = {key: value for key, value in node_config.items() if key.startswith(PREFIX)}
        try:
            if unknown := sorted(own.keys() - known.keys()):
                raise ValueError(
                    f"unknown keys in node_config: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
                )
            return cls(**{known[key]: value for key, value in own.items()})  # type: ignore[arg-type]
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error

    @classmethod
    def of(
        cls,
        node_config: Mapping[str, UserConfigValue],
        *,
        limits: ClientLimits | None = None,
        max_local_delta: float | None = None,
        by_app: bool = False,
    ) -> Self:
        """The settings of a node that takes part, with the limits from the app's code, which do not replace
        an operator's.

        ``by_app`` is whether the app wrote ``node_config``, for a simulation, whose nodes keep no files.
        NO_LIMITS if nobody limits ε0; NO_TOTAL if nobody limits all rounds together (``max_epsilon`` does,
        where a key is pinned); NO_LEDGER if the node sets limits and no file to record in.
        """
        own = cls.read(node_config)
        try:
            both = stricter(limits or ClientLimits(), own)
            deltas = [each for each in (max_local_delta, own.max_local_delta) if each is not None]
            strict = {each.name: getattr(both, each.name) for each in fields(ClientLimits)}
            settings = replace(own, **strict, max_local_delta=min(deltas, default=None))
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
        needed = own if has_operator() else settings
        if needed.max_local_epsilon is None:
            raise ClientRefused(ClientRefusal.NO_LIMITS)
        if not (needed.limits_all_rounds or (needed.max_epsilon is not None and own.pins)):
            raise ClientRefused(ClientRefusal.NO_TOTAL)
        # Limits on what is spent over all runs need a file to count in.
        counted = own.max_local_epsilon, own.max_rounds, own.max_total_local_epsilon, own.max_epsilon
        if any(limit is not None for limit in counted) and own.ledger_file is None and not by_app:
            raise ClientRefused(ClientRefusal.NO_LEDGER)
        return settings


def has_operator() -> bool:
    """Whether this process works for a SuperNode; in a simulation Flower does not tell it which node."""
    try:
        return TaskIdentity.node_id != SUPERLINK_NODE_ID
    except RuntimeError:
        return False


def stricter(first: ClientLimits, second: ClientLimits) -> ClientLimits:
    """For each field the stricter of both limits; None means no limit."""
    given = [limits for limits in (first, second) if limits.max_local_epsilon is not None]
    if len({limits.agrees_to_sums_alone for limits in given}) > 1:
        raise ValueError(
            "max_local_epsilon=inf agrees to sums alone, and a number to reports by themselves: the "
            "operator's and the app's limits must say the same"
        )
    strict: dict[str, Any] = {}
    for name in (each.name for each in fields(ClientLimits)):
        both = [getattr(limits, name) for limits in (first, second) if getattr(limits, name) is not None]
        strict[name] = (max if name.startswith("min_") else min)(both, default=None)
    return ClientLimits(**strict)


# Keys in ``context.state`` of the tokens of all rounds, with what each was charged as, and of the outcomes.
STATE_KEY, _OUTCOMES_KEY = "shuffle-ledger", "shuffle-outcomes"


def charge(
    context: Context,
    settings: ClientSettings,
    instruction: Instruction,
    mechanism: PrivateSum,
    *,
    shuffled: str | None,
) -> None:
    """Charge a round's reports before training: on the disk, or, in a simulation, in ``context.state``."""
    sent, summed = SeveralReports(mechanism, instruction.samples_per_client), mechanism.cohort is not None
    charged, window = Charged(shuffled, sent.local_epsilon, sent.local_delta), None
    if instruction.window is not None and isinstance(mechanism, WindowedSum):
        window = InWindow(instruction.window.series, instruction.window.index, mechanism.band)
    try:
        if settings.ledger_file is None:
            _say_once(
                logging.WARNING,
                "No shuffle-ledger-file in this client's node_config: what it has spent is forgotten after "
                "this run. Right for a simulation; a real client needs the file.",
            )
            _charge_state(
                context.state, instruction.token, charged, limits=settings, summed=summed, window=window
            )
            return
        with ClientLedger(settings.ledger_file) as ledger:
            _say_once(logging.INFO, f"shuffle: this client counts what it spends in {ledger.path}")
            ledger.charge(
                run=instruction.run,
                token=instruction.token,
                server_round=instruction.server_round,
                mechanism=sent.name,
                limits=settings,
                summed=summed,
                window=window,
                **charged._asdict(),
            )
    except ReportRefused as refused:
        code = ClientRefusal[refused.code.name]
        if code is ClientRefusal.MAX_LOCAL_EPSILON and math.isinf(mechanism.local_epsilon):
            code = ClientRefusal.NO_SUMS
        raise ClientRefused(code) from refused
    except (LedgerError, OSError) as error:
        raise ClientRefused(ClientRefusal.LEDGER) from error


def _charge_state(
    state: RecordDict,
    token: bytes,
    charged: Charged,
    *,
    limits: ClientLimits,
    summed: bool,
    window: InWindow | None,
) -> None:
    record = state.config_records.get(STATE_KEY, ConfigRecord({"tokens": [], "charged": [], "windows": []}))
    tokens, rounds = cast(list[bytes], record["tokens"]), cast(list[str], record["charged"])
    windows = cast(list[str], record["windows"])  # a series and a place in it, or nothing, of each round
    if token in tokens:
        raise ReportRefused(Refused.TOKEN_SPENT)
    history = Counter(Charged(*json.loads(each)) for each in rounds)
    limits.check(charged=charged, history=history, summed=summed)
    place = ""
    if window is not None:
        taken = [each.split() for each in windows if each.startswith(window.series.hex())]
        limits.check_separation(window, [int(other) for _, other in taken])
        place = f"{window.series.hex()} {window.place}"
    state[STATE_KEY] = ConfigRecord(
        {"tokens": [*tokens, token], "charged": [*rounds, json.dumps(charged)], "windows": [*windows, place]}
    )


def count_outcome(context: Context, *, failed: bool) -> None:
    """Record in the run's context whether the app failed in a round."""
    record = context.state.config_records.get(_OUTCOMES_KEY, ConfigRecord({"rounds": 0, "failed": 0}))
    rounds, failures = cast(int, record["rounds"]), cast(int, record["failed"])
    context.state[_OUTCOMES_KEY] = ConfigRecord({"rounds": rounds + 1, "failed": failures + failed})


def failed_share(context: Context) -> float:
    """The share of this run's rounds in which the app failed; 0 before the first."""
    record = context.state.config_records.get(_OUTCOMES_KEY)
    return 0.0 if record is None else cast(int, record["failed"]) / cast(int, record["rounds"])


_say_once = cache(_log.log)  # a level and a text; of a process, not of each of its nodes
