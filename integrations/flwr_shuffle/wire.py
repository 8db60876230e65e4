"""Messages as dataclasses: one ``ConfigRecord`` each, with an entry for each field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, Union, cast, get_args, get_origin, get_type_hints

from flwr.app import ConfigRecord

from shuffle_plugins.core.ranges import Ranged
from shuffle_plugins.mechanisms import spec_from_json
from shuffle_plugins.mechanisms.spec import Spec

MESSAGE_VERSION = 3
"""Version of all messages of this package. Nobody reads a message of another version."""

_NATIVE = (int, float, str, bytes, list[bytes])


class WrongVersionError(ValueError):
    """A message of server, client or service node is of another version; the text says which."""


class Wire(Ranged):
    """A dataclass that travels as one ``ConfigRecord``, with an entry for each field.

    Numbers, texts, bytes and lists of bytes are entries as they are; everything else is an entry of JSON. A
    field that has its default value is left out: Flower cannot count the bytes of an empty one.
    """

    def to_record(self) -> ConfigRecord:
        """The message as a record."""
        values: dict[str, Any] = {"version": MESSAGE_VERSION}
        for name, (kind, default) in _entries(type(self)).items():
            if (value := getattr(self, name)) != default:
                values[name] = value if kind in _NATIVE else _text(value)
        return ConfigRecord(values)

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read what :meth:`to_record` wrote.

        Raises:
            WrongVersionError: if it is of another version.
            ValueError: if it is anything else, or an entry is missing, unknown, of another type or out of
                range.
        """
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
    for each in fields(kind):  # type: ignore[arg-type]
        default = each.default if each.default_factory is MISSING else each.default_factory()
        found[each.name] = (_present(_hints(kind)[each.name]), default)
    return found


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_entries: Callable[[Any], dict[str, tuple[Any, Any]]] = cache(_fields)


def _present(kind: Any) -> Any:
    """The type of a value that is not None."""
    given = [each for each in get_args(kind) if each is not NoneType]
    return given[0] if get_origin(kind) in (Union, UnionType) else kind


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


def _text(value: Any) -> str:
    return str(value.to_json()) if hasattr(value, "to_json") else json.dumps(_plain(value))


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


def byte_string(*lengths: int) -> Callable[[str, object], bytes]:
    """A check of a field of bytes that have one of these lengths."""

    def check(name: str, value: object) -> bytes:
        if type(value) is not bytes or len(value) not in lengths:
            raise ValueError(f"{name} is {' or '.join(map(str, lengths))} bytes")
        return value

    return check


def text_of(longest: int) -> Callable[[str, object], str]:
    """A check of a field of printable text."""

    def check(name: str, value: object) -> str:
        if type(value) is not str or not 1 <= len(value) <= longest or not value.isprintable():
            raise ValueError(f"{name} is a text of 1 to {longest} printable characters, got {value!r}")
        return value

    return check


def of_kind(kind: type, what: str) -> Callable[[str, object], object]:
    """A check of a field that holds an object of a class; ``what`` says what to give."""

    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {what}, got {value!r}")
        return value

    return check
