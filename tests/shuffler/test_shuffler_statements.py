"""A mixer's signature holds for what it said, in answer to what it was asked, and for nothing else."""

from __future__ import annotations

from typing import Any

from shuffle_plugins.shuffler.keys import SigningKey, has_signed, public_key_bytes
from shuffle_plugins.shuffler.service import refusal_statement, role_statement
from shuffle_plugins.shuffler.shuffler import Refusal


def test_a_signature_holds_for_one_statement_and_one_key() -> None:
    role: dict[str, Any] = {"role": "mixer", "challenge": bytes(32), "run": "7", "node": 5}
    role |= {"sealing_key": bytes(32), "minimum": 3}
    changed: list[dict[str, Any]] = [
        {},
        {"role": "aggregator"},
        {"challenge": bytes(31) + b"x"},
        {"run": "8"},
    ]
    changed += [{"node": 6}, {"node": -5}, {"sealing_key": bytes(31) + b"x"}, {"minimum": 2}]
    refused: dict[str, Any] = {"request": bytes(32), "code": Refusal.UNDER_MINIMUM, "rejected": {}}
    others: list[dict[str, Any]] = [{}, {"request": bytes(31) + b"x"}, {"code": Refusal.REPLAYED}]
    others += [{"rejected": {0: Refusal.UNREADABLE}}]
    said = [role_statement(**{**role, **change}) for change in changed]
    said += [refusal_statement(**{**refused, **change}) for change in others]
    assert len(set(said)) == 12
    key = SigningKey.generate()
    signature = key.sign(said[0])
    assert [has_signed(public_key_bytes(key), signature, other) for other in said] == [True] + 11 * [False]
    assert not has_signed(public_key_bytes(SigningKey.generate()), signature, said[0])
    for bad in (b"", bytes(64), bytes(63), b"x" * 200):
        assert not has_signed(public_key_bytes(key), bad, said[0])
        assert not has_signed(b"no key", bad, said[0])
