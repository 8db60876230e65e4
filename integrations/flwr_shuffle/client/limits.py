"""What a client agrees to, from node_config and the app's ShuffleMod, and its record of what it has spent.

The operator of a node writes its ``node_config``. The app's code, with the arguments of ``ShuffleMod(...)``,
comes with the run. If both set a limit, the stricter one holds. Messages from the server set no limits.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self, TypeVar, cast

from flwr.app import ConfigRecord, Context, RecordDict, UserConfigValue

# Flower has no public address for these two: the server's id, and whose messages this process makes.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from flwr_shuffle.messages import ClientRefusal, Instruction
from shuffle_plugins.core import checks
from shuffle_plugins.ledger import Charged, ClientLedger, LedgerError, Refused, ReportRefused
from shuffle_plugins.ledger import ClientLimits as ClientLimits
from shuffle_plugins.mechanisms import PrivateSum, SeveralReports
from shuffle_plugins.shuffler import keys

_log = logging.getLogger("flwr")

Number = TypeVar("Number", int, float)

PREFIX = "shuffle-"
"""What every key of this package in a ``node_config`` begins with."""

_LONGEST_REPLY = 604800.0  # seconds: a week


class NodeKey(StrEnum):
    """Every ``shuffle-`` key that a client's ``node_config`` may have; :class:`ShuffleMod` explains them."""

    MAX_LOCAL_EPSILON = "shuffle-max-local-epsilon"
    MAX_LOCAL_DELTA = "shuffle-max-local-delta"
    MAX_ROUNDS = "shuffle-max-rounds"
    MAX_TOTAL_LOCAL_EPSILON = "shuffle-max-total-local-epsilon"
    MIN_REPORTS = "shuffle-min-reports"
    MAX_EPSILON = "shuffle-max-epsilon"
    DELTA = "shuffle-delta"
    LEDGER_FILE = "shuffle-ledger-file"
    REPLY_SECONDS = "shuffle-reply-seconds"
    MIXER_PUBLIC_KEY = "shuffle-mixer-public-key"
    AGGREGATOR_PUBLIC_KEYS = "shuffle-aggregator-public-keys"
    SIGNING_KEY_FILE = "shuffle-signing-key-file"
    ALLOW_EVALUATE = "shuffle-allow-evaluate"
    ALLOW_QUERY = "shuffle-allow-query"
    ALLOW_GET_PARAMETERS = "shuffle-allow-get-parameters"
    ALLOW_GET_PROPERTIES = "shuffle-allow-get-properties"


UNPROTECTED = {
    "evaluate": (NodeKey.ALLOW_EVALUATE, ClientRefusal.NO_EVALUATE),
    "query": (NodeKey.ALLOW_QUERY, ClientRefusal.NO_QUERY),
    "get_parameters": (NodeKey.ALLOW_GET_PARAMETERS, ClientRefusal.NO_GET_PARAMETERS),
    "get_properties": (NodeKey.ALLOW_GET_PROPERTIES, ClientRefusal.NO_GET_PROPERTIES),
}
"""Types of messages that the app answers without protection, if its operator allows it: for each the key that
allows it, and the refusal that is sent otherwise."""

# Limits on what is spent over all runs. They need a file to count in.
_COUNTED = frozenset(
    {NodeKey.MAX_LOCAL_EPSILON, NodeKey.MAX_ROUNDS, NodeKey.MAX_TOTAL_LOCAL_EPSILON, NodeKey.MAX_EPSILON}
)


class ClientRefused(Exception):
    """A client does not take part in a round.

    Attributes:
        code: why; its text is what the server gets.
    """

    def __init__(self, code: ClientRefusal) -> None:
        super().__init__(str(code))
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """What one client agrees to, and where its ledger and keys are.

    Attributes:
        limits: on ε0 per round, rounds, total ε0, the fewest reports of a round, and the certified ε.
        max_local_delta: largest δ0 of a report; with 0 only mechanisms with δ0 = 0 are accepted.
        ledger_file: where the client records what it spends; None records in Flower's context.
        mixer_keys: public keys of the mixers to seal to, 32 bytes each, in the order in which they work;
            empty sends unsealed reports.
        aggregator_keys: public keys of the aggregators to seal to, 32 bytes each, in the server's order;
            empty if counts are not shared.
        signing_key_file: file of the client's private signing key; given if and only if mixers' or
            aggregators' keys are.
        reply_seconds: seconds from a request to its reply; None replies as soon as the reply is ready.
    """

    limits: ClientLimits
    max_local_delta: float = 0.0
    ledger_file: Path | None = None
    mixer_keys: tuple[bytes, ...] = ()
    aggregator_keys: tuple[bytes, ...] = ()
    signing_key_file: Path | None = None
    reply_seconds: float | None = None

    @classmethod
    def of(
        cls,
        node_config: Mapping[str, UserConfigValue],
        *,
        limits: ClientLimits | None = None,
        max_local_delta: float | None = None,
        by_app: bool = False,
    ) -> Self:
        """The settings of a node.

        Args:
            node_config: of the node; keys that do not start with ``shuffle-`` are ignored.
            limits: from the app's code, if any. On a SuperNode they do not replace its operator's.
            max_local_delta: from the app's code, if any.
            by_app: whether the app wrote ``node_config``, for a simulation, whose nodes keep no files.

        Raises:
            ClientRefused: BAD_SETTINGS if a ``shuffle-`` key is unknown (so that a mistyped limit is noticed)
                or a value has the wrong type or is out of range; NO_LIMITS if nobody limits ε0; NO_TOTAL
                if nobody limits all rounds together (``max_epsilon`` does, where a key is pinned);
                NO_LEDGER if the node sets limits and no file to record in.
        """
        own = _own(node_config)
        try:
            _check_keys(own)
            by_node = _limits(own)
            both = stricter(limits or ClientLimits(), by_node)
            delta = _number(own, NodeKey.MAX_LOCAL_DELTA)
            if delta is not None:
                checks.number(NodeKey.MAX_LOCAL_DELTA, delta, at_least=0, below=1)
            mixer_key, signing_key = own.get(NodeKey.MIXER_PUBLIC_KEY), _path(own, NodeKey.SIGNING_KEY_FILE)
            aggregator_keys = _pinned(own, NodeKey.AGGREGATOR_PUBLIC_KEYS)
            pins = mixer_key is not None or bool(aggregator_keys)
            if pins != (signing_key is not None):
                raise ValueError(
                    f"{NodeKey.SIGNING_KEY_FILE} goes together with {NodeKey.MIXER_PUBLIC_KEY} or "
                    f"{NodeKey.AGGREGATOR_PUBLIC_KEYS}"
                )
            settings = cls(
                limits=both,
                max_local_delta=_least(max_local_delta, delta) or 0.0,
                ledger_file=_path(own, NodeKey.LEDGER_FILE),
                mixer_keys=_pinned(own, NodeKey.MIXER_PUBLIC_KEY),
                aggregator_keys=aggregator_keys,
                signing_key_file=signing_key,
                reply_seconds=_seconds(own, NodeKey.REPLY_SECONDS),
            )
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
        needed = by_node if has_operator() else both
        if needed.max_local_epsilon is None:
            raise ClientRefused(ClientRefusal.NO_LIMITS)
        if not (needed.limits_all_rounds or (needed.max_epsilon is not None and pins)):
            raise ClientRefused(ClientRefusal.NO_TOTAL)
        if own.keys() & _COUNTED and settings.ledger_file is None and not by_app:
            raise ClientRefused(ClientRefusal.NO_LEDGER)
        return settings


def has_operator() -> bool:
    """Whether this process works for a SuperNode, and not for nodes of a simulation.

    Flower tells a SuperNode's process which node it is. A simulation's it does not, and an
    :class:`InProcessGrid` makes its messages as the server.
    """
    try:
        return TaskIdentity.node_id != SUPERLINK_NODE_ID
    except RuntimeError:
        return False


def open_types(
    node_config: Mapping[str, UserConfigValue], *, by_app: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Types of messages that a node's operator lets the app answer without protection."""
    own = _own(node_config)
    if not own and not has_operator():
        return by_app
    try:
        _check_keys(own)
        for key, _ in UNPROTECTED.values():
            if type(own.get(key, False)) is not bool:
                raise ValueError(f"{key} is true or false, without quotes; got {own[key]!r}")
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
    return frozenset(kind for kind, (key, _) in UNPROTECTED.items() if own.get(key, False))


def stricter(first: ClientLimits, second: ClientLimits) -> ClientLimits:
    """For each field the stricter of both limits; None means no limit."""
    given = [limits for limits in (first, second) if limits.max_local_epsilon is not None]
    if len({limits.agrees_to_sums_alone for limits in given}) > 1:
        raise ValueError(
            "max_local_epsilon=inf agrees to sums alone, and a number to reports by themselves: the "
            "operator's and the app's limits must say the same"
        )
    fewest = [limits.min_reports for limits in (first, second) if limits.min_reports is not None]
    return ClientLimits(
        max_local_epsilon=_least(first.max_local_epsilon, second.max_local_epsilon),
        max_rounds=_least(first.max_rounds, second.max_rounds),
        max_total_local_epsilon=_least(first.max_total_local_epsilon, second.max_total_local_epsilon),
        min_reports=max(fewest, default=None),
        max_epsilon=_least(first.max_epsilon, second.max_epsilon),
        delta=_least(first.delta, second.delta),
    )


def _limits(own: Mapping[str, UserConfigValue]) -> ClientLimits:
    """The limits that a node's operator set."""
    return ClientLimits(
        max_local_epsilon=_number(own, NodeKey.MAX_LOCAL_EPSILON),
        max_rounds=_whole_number(own, NodeKey.MAX_ROUNDS),
        max_total_local_epsilon=_number(own, NodeKey.MAX_TOTAL_LOCAL_EPSILON),
        min_reports=_whole_number(own, NodeKey.MIN_REPORTS),
        max_epsilon=_number(own, NodeKey.MAX_EPSILON),
        delta=_number(own, NodeKey.DELTA),
    )


def _own(node_config: Mapping[str, UserConfigValue]) -> dict[str, UserConfigValue]:
    return {key: value for key, value in node_config.items() if key.startswith(PREFIX)}


def _check_keys(own: Mapping[str, UserConfigValue]) -> None:
    unknown = sorted(own.keys() - set(NodeKey))
    if unknown:
        raise ValueError(
            f"unknown keys in node_config: {', '.join(unknown)}; known: {', '.join(sorted(NodeKey))}"
        )


def _least(first: Number | None, second: Number | None) -> Number | None:
    given = [limit for limit in (first, second) if limit is not None]
    return min(given) if given else None


def _number(own: Mapping[str, UserConfigValue], key: str) -> float | None:
    value = own.get(key)
    if value is None:
        return None
    if isinstance(value, (bool, str)) or math.isnan(value):
        raise ValueError(f"{key} is a number, got {value!r}")
    return float(value)


def _seconds(own: Mapping[str, UserConfigValue], key: str) -> float | None:
    return None if key not in own else checks.number(key, own[key], above=0, at_most=_LONGEST_REPLY)


def _whole_number(own: Mapping[str, UserConfigValue], key: str) -> int | None:
    return None if key not in own else checks.whole(key, own[key], at_least=0)


def _pinned(own: Mapping[str, UserConfigValue], key: str) -> tuple[bytes, ...]:
    """The keys to seal to of the mixers or aggregators whose public keys the operator has pinned."""
    return tuple(each.sealing for each in keys.parse_mix_cascade(own[key])) if key in own else ()


def _path(own: Mapping[str, UserConfigValue], key: str) -> Path | None:
    value = own.get(key)
    if value is None:
        return None
    if type(value) is not str or not value:
        raise ValueError(f"{key} is the path of a file, got {value!r}")
    return Path(value).expanduser()


STATE_KEY = "shuffle-ledger"
"""Key of the record in ``context.state``."""

_TOKENS, _EPSILONS, _DELTAS, _SHUFFLED = "tokens", "local-epsilons", "local-deltas", "shuffled"
_NOTHING_PROMISED = "-"  # a ConfigRecord holds no None
_OUTCOMES_KEY, _ROUNDS, _FAILED = "shuffle-outcomes", "rounds", "failed"

_CODES = {
    Refused.MAX_LOCAL_EPSILON: ClientRefusal.MAX_LOCAL_EPSILON,
    Refused.MAX_ROUNDS: ClientRefusal.MAX_ROUNDS,
    Refused.MAX_TOTAL: ClientRefusal.MAX_TOTAL_LOCAL_EPSILON,
    Refused.TOKEN_SPENT: ClientRefusal.TOKEN_SPENT,
    Refused.NOT_SUMMED: ClientRefusal.SUMS_ALONE,
    Refused.FEW_REPORTS: ClientRefusal.MIN_REPORTS,
    Refused.MAX_EPSILON: ClientRefusal.MAX_EPSILON,
}


def charge(
    context: Context,
    settings: ClientSettings,
    instruction: Instruction,
    mechanism: PrivateSum,
    *,
    shuffled: str | None,
) -> None:
    """Charge all reports of a round to this client, before it trains; if there is a file, it is on disk then.

    Without a file the record is in ``context.state``. Flower saves that per node and run, and only when the
    app has answered: it survives neither a crash of the client nor the end of the run. It is meant for
    simulations.

    Args:
        context: the client app's context, whose state keeps the record if there is no file.
        settings: what the client agrees to, and where it records.
        instruction: the round's instruction from the server.
        mechanism: the mechanism that randomises each report.
        shuffled: the round of as many reports as were promised; None if it cannot be accounted for.

    Raises:
        ClientRefused: if a limit would be exceeded, the token was charged before, or the file cannot be used.
            Nothing is charged then.
    """
    sent = SeveralReports(mechanism, instruction.samples_per_client)
    try:
        if settings.ledger_file is None:
            _warn_of_no_file()
            charged = Charged(shuffled, sent.local_epsilon, sent.local_delta)
            _charge_state(
                context.state,
                instruction.token,
                charged,
                limits=settings.limits,
                summed=mechanism.must_be_summed,
            )
            return
        with ClientLedger(settings.ledger_file) as ledger:
            _log_path(str(ledger.path))
            ledger.charge(
                run=instruction.run,
                token=instruction.token,
                server_round=instruction.server_round,
                mechanism=sent.name,
                local_epsilon=sent.local_epsilon,
                local_delta=sent.local_delta,
                limits=settings.limits,
                shuffled=shuffled,
                summed=mechanism.must_be_summed,
            )
    except ReportRefused as refused:
        code = _CODES[refused.code]
        if code is ClientRefusal.MAX_LOCAL_EPSILON and math.isinf(mechanism.local_epsilon):
            code = ClientRefusal.NO_SUMS
        raise ClientRefused(code) from refused
    except (LedgerError, OSError) as error:
        raise ClientRefused(ClientRefusal.LEDGER) from error


def _charge_state(
    state: RecordDict, token: bytes, charged: Charged, *, limits: ClientLimits, summed: bool
) -> None:
    empty = ConfigRecord({_TOKENS: [], _EPSILONS: [], _DELTAS: [], _SHUFFLED: []})
    record = state.config_records.get(STATE_KEY, empty)
    tokens, rounds = cast(list[bytes], record[_TOKENS]), cast(list[str], record[_SHUFFLED])
    epsilons, deltas = cast(list[float], record[_EPSILONS]), cast(list[float], record[_DELTAS])
    if token in tokens:
        raise ReportRefused(Refused.TOKEN_SPENT)
    history = Counter(
        Charged(None if shuffled == _NOTHING_PROMISED else shuffled, epsilon, delta)
        for shuffled, epsilon, delta in zip(rounds, epsilons, deltas, strict=True)
    )
    limits.check(charged=charged, history=history, summed=summed)
    state[STATE_KEY] = ConfigRecord(
        {
            _TOKENS: [*tokens, token],
            _EPSILONS: [*epsilons, charged.local_epsilon],
            _DELTAS: [*deltas, charged.local_delta],
            _SHUFFLED: [*rounds, charged.shuffled or _NOTHING_PROMISED],
        }
    )


def count_outcome(context: Context, *, failed: bool) -> None:
    """Record in the run's context, which stays on the client, whether the app failed in a round."""
    record = context.state.config_records.get(_OUTCOMES_KEY, ConfigRecord({_ROUNDS: 0, _FAILED: 0}))
    rounds, failures = cast(int, record[_ROUNDS]), cast(int, record[_FAILED])
    context.state[_OUTCOMES_KEY] = ConfigRecord({_ROUNDS: rounds + 1, _FAILED: failures + failed})


def failed_share(context: Context) -> float:
    """The share of this run's rounds in which the app failed; 0 before the first."""
    record = context.state.config_records.get(_OUTCOMES_KEY)
    return 0.0 if record is None else cast(int, record[_FAILED]) / cast(int, record[_ROUNDS])


@cache
def _log_path(path: str) -> None:
    _log.info("shuffle: this client counts what it spends in %s", path)


@cache
def _warn_of_no_file() -> None:
    _log.warning(
        "No shuffle-ledger-file in this client's node_config: what it has spent is forgotten after this run. "
        "Right for a simulation; a real client needs the file."
    )
