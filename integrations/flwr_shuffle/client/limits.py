"""What a client agrees to: limits from node_config and the app's ShuffleMod, keys from node_config only.

The operator of a node writes its ``node_config``. The app's code, with the arguments of ``ShuffleMod(...)``,
is delivered with the run. Messages from the server set no limits. Where both set a limit, the stricter one
holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from flwr.app import UserConfigValue

from shuffle_plugins.ledger import ClientLimits as ClientLimits
from shuffle_plugins.shuffler.errors import ShuffleError
from shuffle_plugins.shuffler.keys import parse_mixer_sealing_key

Number = TypeVar("Number", int, float)

PREFIX = "shuffle-"
_LONGEST_REPLY = 604800.0
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
SIGNING_KEY_FILE = "shuffle-signing-key-file"
OPEN_TYPES = {
    "evaluate": "shuffle-allow-evaluate",
    "query": "shuffle-allow-query",
    "get_parameters": "shuffle-allow-get-parameters",
    "get_properties": "shuffle-allow-get-properties",
}
"""For each message type answered without protection only if allowed: the ``node_config`` key that allows
it."""

KEYS = frozenset(
    {
        *OPEN_TYPES.values(),
        MAX_LOCAL_EPSILON,
        MAX_LOCAL_DELTA,
        MAX_ROUNDS,
        MAX_TOTAL_LOCAL_EPSILON,
        MIN_REPORTS,
        MAX_EPSILON,
        DELTA,
        LEDGER_FILE,
        REPLY_SECONDS,
        MIXER_PUBLIC_KEY,
        SIGNING_KEY_FILE,
    }
)
"""Every ``shuffle-`` key that a client's ``node_config`` may have."""

_COUNTED = frozenset({MAX_LOCAL_EPSILON, MAX_ROUNDS, MAX_TOTAL_LOCAL_EPSILON, MAX_EPSILON})


class ClientRefusal(StrEnum):
    """The texts with which a client refuses, constants without data. Only two can depend on how training
    went."""

    NO_INSTRUCTION = "shuffle: this client trains in shuffled rounds only, and the message has no instruction"
    BAD_INSTRUCTION = "shuffle: the instruction is malformed"
    BAD_MODEL = (
        "shuffle: the message must hold one ArrayRecord of floating-point arrays; integer arrays may "
        "be among them"
    )
    BAD_MECHANISM = "shuffle: this client cannot build the mechanism for this model"
    SEALED_SUM = (
        "shuffle: the server asks for one client's share of a multi-message sum as a sealed report, but a "
        "single share is not private; the server must use SummingStage"
    )
    BAD_SETTINGS = "shuffle: the client's node_config is not valid"
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
    NO_MIXER_KEY = "shuffle: sealed reports need shuffle-mixer-public-key and shuffle-signing-key-file"
    BAD_SIGNING_KEY = "shuffle: the client's signing key cannot be read"
    BAD_ANALYZER_KEY = "shuffle: reports cannot be sealed to the analyzer's key that the server sent"
    LEDGER = "shuffle: the client's ledger cannot be used"
    MAX_LOCAL_EPSILON = "shuffle: the round's local epsilon exceeds the client's limit"
    NO_SUMS = (
        "shuffle: a share of this sum has no finite local epsilon; a client agrees to such sums by "
        "shuffle-max-local-epsilon=inf, or ClientLimits(max_local_epsilon=math.inf)"
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


CLOSED = {
    "evaluate": ClientRefusal.NO_EVALUATE,
    "query": ClientRefusal.NO_QUERY,
    "get_parameters": ClientRefusal.NO_GET_PARAMETERS,
    "get_properties": ClientRefusal.NO_GET_PROPERTIES,
}
"""For each of these message types: the refusal that is sent if it is not allowed."""


class ClientRefused(Exception):
    """A client does not take part; ``code`` says why."""

    def __init__(self, code: ClientRefusal) -> None:
        super().__init__(str(code))
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """What one client agrees to, and where its ledger and keys are.

    Attributes:
        limits: on ε0 per round, rounds, total ε0, the fewest reports of a round, and the certified ε.
        max_local_delta: largest δ0 of a report; with 0 only mechanisms with δ0 = 0 are accepted.
        ledger_file: where the client counts; None keeps the count in Flower's context.
        mixer_key: public key of the mixer, 32 bytes; None sends unsealed reports.
        signing_key_file: the client's private signing key; present if and only if ``mixer_key`` is.
        reply_seconds: when a reply leaves, after the request came; None lets it leave once it is ready.
    """

    limits: ClientLimits
    max_local_delta: float = 0.0
    ledger_file: Path | None = None
    mixer_key: bytes | None = None
    signing_key_file: Path | None = None
    reply_seconds: float | None = None

    @classmethod
    def of(
        cls,
        node_config: Mapping[str, UserConfigValue],
        *,
        limits: ClientLimits | None = None,
        max_local_delta: float | None = None,
    ) -> Self:
        """The settings of a node.

        Args:
            node_config: of the node; keys that do not start with ``shuffle-`` are ignored.
            limits: from the app's code, if any.
            max_local_delta: from the app's code, if any.

        Raises:
            ClientRefused: BAD_SETTINGS if a ``shuffle-`` key is unknown (so that a mistyped limit is noticed)
                or a value has the wrong type or is out of range; NO_LIMITS if nobody limits ε0; NO_TOTAL
                if nobody limits all rounds together (``max_epsilon`` does, where a mixer's key is pinned);
                NO_LEDGER if the node's limits have no file to count in.
        """
        own = _own(node_config)
        try:
            return cls._of(own, limits, max_local_delta)
        except (ValueError, ShuffleError) as error:
            raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error

    @classmethod
    def _of(
        cls,
        own: Mapping[str, UserConfigValue],
        limits: ClientLimits | None,
        max_local_delta: float | None,
    ) -> Self:
        _check_keys(own)
        configured = ClientLimits(
            max_local_epsilon=_number(own, MAX_LOCAL_EPSILON),
            max_rounds=_whole_number(own, MAX_ROUNDS),
            max_total_local_epsilon=_number(own, MAX_TOTAL_LOCAL_EPSILON),
            min_reports=_whole_number(own, MIN_REPORTS),
            max_epsilon=_number(own, MAX_EPSILON),
            delta=_number(own, DELTA),
        )
        both = stricter(limits, configured) if limits is not None else configured
        if both.max_local_epsilon is None:
            raise ClientRefused(ClientRefusal.NO_LIMITS)
        delta = _number(own, MAX_LOCAL_DELTA)
        if delta is not None:
            check_max_local_delta(delta)
        mixer_key, signing_key = own.get(MIXER_PUBLIC_KEY), _path(own, SIGNING_KEY_FILE)
        if (mixer_key is None) != (signing_key is None):
            raise ValueError(f"{MIXER_PUBLIC_KEY} and {SIGNING_KEY_FILE} go together")
        settings = cls(
            limits=both,
            max_local_delta=_least(max_local_delta, delta) or 0.0,
            ledger_file=_path(own, LEDGER_FILE),
            mixer_key=None if mixer_key is None else parse_mixer_sealing_key(mixer_key),
            signing_key_file=signing_key,
            reply_seconds=_seconds(own, REPLY_SECONDS),
        )
        if not (both.limits_all_rounds or (both.max_epsilon is not None and settings.mixer_key is not None)):
            raise ClientRefused(ClientRefusal.NO_TOTAL)
        if own.keys() & _COUNTED and settings.ledger_file is None:
            raise ClientRefused(ClientRefusal.NO_LEDGER)
        return settings


def open_types(
    node_config: Mapping[str, UserConfigValue], *, by_app: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Types of messages that a node's operator lets the app answer without protection.

    Args:
        node_config: of the node.
        by_app: what the app's code allows. It counts where nobody has configured the node, as in a
            simulation: with any ``shuffle-`` key in ``node_config`` the operator alone decides.

    Raises:
        ClientRefused: BAD_SETTINGS if a ``shuffle-`` key is unknown, or one of these not true or false.
    """
    own = _own(node_config)
    if not own:
        return by_app
    try:
        _check_keys(own)
        for key in OPEN_TYPES.values():
            if type(own.get(key, False)) is not bool:
                raise ValueError(f"{key} is true or false, without quotes; got {own[key]!r}")
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_SETTINGS) from error
    return frozenset(kind for kind, key in OPEN_TYPES.items() if own.get(key, False))


def check_max_local_delta(limit: float) -> float:
    """Return the limit on δ0.

    Raises:
        ValueError: unless it is a number in [0, 1).
    """
    if type(limit) not in (int, float) or not 0 <= limit < 1:
        raise ValueError(f"the largest local delta is a number in [0, 1), got {limit!r}")
    return float(limit)


def stricter(first: ClientLimits, second: ClientLimits) -> ClientLimits:
    """For each field the stricter of both limits; None means no limit."""
    fewest = [limits.min_reports for limits in (first, second) if limits.min_reports is not None]
    return ClientLimits(
        max_local_epsilon=_least(first.max_local_epsilon, second.max_local_epsilon),
        max_rounds=_least(first.max_rounds, second.max_rounds),
        max_total_local_epsilon=_least(first.max_total_local_epsilon, second.max_total_local_epsilon),
        min_reports=max(fewest, default=None),
        max_epsilon=_least(first.max_epsilon, second.max_epsilon),
        delta=_least(first.delta, second.delta),
    )


def _own(node_config: Mapping[str, UserConfigValue]) -> dict[str, UserConfigValue]:
    return {key: value for key, value in node_config.items() if key.startswith(PREFIX)}


def _check_keys(own: Mapping[str, UserConfigValue]) -> None:
    unknown = sorted(own.keys() - KEYS)
    if unknown:
        raise ValueError(f"unknown keys in node_config: {', '.join(unknown)}; known: {sorted(KEYS)}")


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
    seconds = _number(own, key)
    if seconds is not None and not 0 < seconds <= _LONGEST_REPLY:
        raise ValueError(f"{key} is a positive number of seconds, at most {_LONGEST_REPLY:g}")
    return seconds


def _whole_number(own: Mapping[str, UserConfigValue], key: str) -> int | None:
    value = own.get(key)
    if value is not None and type(value) is not int:
        raise ValueError(f"{key} is a whole number, got {value!r}")
    return value


def _path(own: Mapping[str, UserConfigValue], key: str) -> Path | None:
    value = own.get(key)
    if value is None:
        return None
    if type(value) is not str or not value:
        raise ValueError(f"{key} is the path of a file, got {value!r}")
    return Path(value).expanduser()
