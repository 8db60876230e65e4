"""What a client agrees to, from node_config and the app's ShuffleMod, and its record of what it has spent.

The operator of a node writes its ``node_config``. The app's code, with the arguments of ``ShuffleMod(...)``,
comes with the run. If both set a limit, the stricter one holds. Messages from the server set no limits.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, cast

from flwr.app import ConfigRecord, Context, RecordDict, UserConfigValue

# Flower has no public address for these two: the server's id, and whose messages this process makes.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from flwr_shuffle.messages import ClientRefusal, Instruction
from shuffle_plugins.core.ranges import in_range
from shuffle_plugins.ledger import ClientLedger, LedgerError, ReportRefused
from shuffle_plugins.ledger import ClientLimits as ClientLimits
from shuffle_plugins.ledger.client import Charged, Refused
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.mechanisms.base import SeveralReports
from shuffle_plugins.shuffler import keys

_log = logging.getLogger("flwr")

PREFIX = "shuffle-"
"""What every key of this package in a ``node_config`` begins with."""

UNPROTECTED = {
    "evaluate": ClientRefusal.NO_EVALUATE,
    "query": ClientRefusal.NO_QUERY,
    "get_parameters": ClientRefusal.NO_GET_PARAMETERS,
    "get_properties": ClientRefusal.NO_GET_PROPERTIES,
}
"""Messages that the app answers without protection if its operator allows it, and how it refuses them."""

# Limits on what is spent over all runs. They need a file to count in.
_COUNTED = ("max_local_epsilon", "max_rounds", "max_total_local_epsilon", "max_epsilon")


class ClientRefused(Exception):
    """A client does not take part in a round; the text of ``code`` is what the server gets."""

    def __init__(self, code: ClientRefusal) -> None:
        super().__init__(str(code))
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


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} is true or false, without quotes; got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class ClientSettings(ClientLimits):
    """What one client agrees to, and where its ledger and keys are.

    Each field is a key of its ``node_config``, with :data:`PREFIX` before it and dashes in it; the guide says
    what they mean. Of pinned public keys the parts to seal to are kept, 32 bytes each, in their order.
    """

    max_local_delta: Annotated[float, in_range(at_least=0, below=1)] | None = None
    ledger_file: Annotated[Path, _path] | None = None
    reply_seconds: Annotated[float, in_range(above=0, at_most=604_800)] | None = None  # a week
    mixer_public_key: Annotated[tuple[bytes, ...], _pinned] = ()
    aggregator_public_keys: Annotated[tuple[bytes, ...], _pinned] = ()
    signing_key_file: Annotated[Path, _path] | None = None
    allow_evaluate: Annotated[bool, _flag] = False
    allow_query: Annotated[bool, _flag] = False
    allow_get_parameters: Annotated[bool, _flag] = False
    allow_get_properties: Annotated[bool, _flag] = False

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
        """What a node's operator wrote; other keys than this package's are ignored.

        Raises:
            ClientRefused: BAD_SETTINGS if a ``shuffle-`` key is unknown (so that a mistyped limit is noticed)
                or a value has the wrong type or is out of range.
        """
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
        """The settings of a node that takes part, with the limits from the app's code.

        On a SuperNode these do not replace its operator's. ``by_app`` is whether the app wrote
        ``node_config``, for a simulation, whose nodes keep no files.

        Raises:
            ClientRefused: as of :meth:`read`; NO_LIMITS if nobody limits ε0; NO_TOTAL if nobody limits all
                rounds together (``max_epsilon`` does, where a key is pinned); NO_LEDGER if the node sets
                limits and no file to record in.
        """
        own = cls.read(node_config)
        try:
            both = stricter(limits or ClientLimits(), own)
            delta = _least(max_local_delta, own.max_local_delta)
            strict = {each.name: getattr(both, each.name) for each in fields(ClientLimits)}
            settings = replace(own, **strict, max_local_delta=delta)
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
        needed = own if has_operator() else settings
        if needed.max_local_epsilon is None:
            raise ClientRefused(ClientRefusal.NO_LIMITS)
        if not (needed.limits_all_rounds or (needed.max_epsilon is not None and own.pins)):
            raise ClientRefused(ClientRefusal.NO_TOTAL)
        counted = any(getattr(own, name) is not None for name in _COUNTED)
        if counted and own.ledger_file is None and not by_app:
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
    """Types of messages that a node's operator lets the app answer without protection.

    Types that the app's code allows count for a node of a simulation without any key of this package in its
    ``node_config``; elsewhere the operator alone decides.
    """
    if not any(key.startswith(PREFIX) for key in node_config) and not has_operator():
        return by_app
    own = ClientSettings.read(node_config)
    return frozenset(kind for kind in UNPROTECTED if getattr(own, f"allow_{kind}"))


def stricter(first: ClientLimits, second: ClientLimits) -> ClientLimits:
    """For each field the stricter of both limits; None means no limit."""
    given = [limits for limits in (first, second) if limits.max_local_epsilon is not None]
    if len({limits.agrees_to_sums_alone for limits in given}) > 1:
        raise ValueError(
            "max_local_epsilon=inf agrees to sums alone, and a number to reports by themselves: the "
            "operator's and the app's limits must say the same"
        )
    names = {each.name for each in fields(ClientLimits)} - {"min_reports"}
    fewest = [limits.min_reports for limits in (first, second) if limits.min_reports is not None]
    least = {name: _least(getattr(first, name), getattr(second, name)) for name in names}
    return ClientLimits(**least, min_reports=max(fewest, default=None))


def _least(*limits: Any) -> Any:
    return min((limit for limit in limits if limit is not None), default=None)


STATE_KEY = "shuffle-ledger"
"""Key of the record in ``context.state``: the tokens of all rounds, and as JSON what each was charged as."""

_OUTCOMES_KEY = "shuffle-outcomes"

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

    Without a file the record is in ``context.state``, for simulations: Flower saves that per node and run,
    and only when the app has answered. ``shuffled`` is the round of as many reports as were promised; None
    if it cannot be accounted for. ClientRefused, and nothing charged, if a limit would be exceeded, the
    token was charged before, or the file cannot be used.
    """
    sent, summed = SeveralReports(mechanism, instruction.samples_per_client), mechanism.must_be_summed
    charged = Charged(shuffled, sent.local_epsilon, sent.local_delta)
    try:
        if settings.ledger_file is None:
            _warn_of_no_file()
            _charge_state(context.state, instruction.token, charged, limits=settings, summed=summed)
            return
        with ClientLedger(settings.ledger_file) as ledger:
            _log_path(str(ledger.path))
            ledger.charge(
                run=instruction.run,
                token=instruction.token,
                server_round=instruction.server_round,
                mechanism=sent.name,
                limits=settings,
                summed=summed,
                **charged._asdict(),
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
    record = state.config_records.get(STATE_KEY, ConfigRecord({"tokens": [], "charged": []}))
    tokens, rounds = cast(list[bytes], record["tokens"]), cast(list[str], record["charged"])
    if token in tokens:
        raise ReportRefused(Refused.TOKEN_SPENT)
    history = Counter(Charged(*json.loads(each)) for each in rounds)
    limits.check(charged=charged, history=history, summed=summed)
    state[STATE_KEY] = ConfigRecord({"tokens": [*tokens, token], "charged": [*rounds, json.dumps(charged)]})


def count_outcome(context: Context, *, failed: bool) -> None:
    """Record in the run's context, which stays on the client, whether the app failed in a round."""
    record = context.state.config_records.get(_OUTCOMES_KEY, ConfigRecord({"rounds": 0, "failed": 0}))
    rounds, failures = cast(int, record["rounds"]), cast(int, record["failed"])
    context.state[_OUTCOMES_KEY] = ConfigRecord({"rounds": rounds + 1, "failed": failures + failed})


def failed_share(context: Context) -> float:
    """The share of this run's rounds in which the app failed; 0 before the first."""
    record = context.state.config_records.get(_OUTCOMES_KEY)
    return 0.0 if record is None else cast(int, record["failed"]) / cast(int, record["rounds"])


@cache
def _log_path(path: str) -> None:
    _log.info("shuffle: this client counts what it spends in %s", path)


@cache
def _warn_of_no_file() -> None:
    _log.warning(
        "No shuffle-ledger-file in this client's node_config: what it has spent is forgotten after this run. "
        "Right for a simulation; a real client needs the file."
    )
