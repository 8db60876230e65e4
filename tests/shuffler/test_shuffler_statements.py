"""A mixer's signature holds for what it said, in answer to what it was asked, and for nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shuffle_plugins.shuffler.keys import SigningKey, public_key_bytes
from shuffle_plugins.shuffler.service import Statement, refusal_statement, role_statement
from shuffle_plugins.shuffler.shuffler import Refusal

KEY = SigningKey.generate()

ROLE: dict[str, Any] = {
    "role": "mixer",
    "challenge": bytes(32),
    "run": "7",
    "node": 5,
    "sealing_key": bytes(32),
    "minimum": 3,
}
REFUSED: dict[str, Any] = {"request": bytes(32), "code": Refusal.UNDER_MINIMUM, "rejected": {}}


def statements() -> dict[str, bytes]:
    """Digests of statements of which each differs from all others in one thing at least."""
    roles = [
        ROLE,
        {**ROLE, "role": "aggregator"},
        {**ROLE, "challenge": bytes(31) + b"x"},
        {**ROLE, "run": "8"},
        {**ROLE, "node": 6},
        {**ROLE, "node": -5},
        {**ROLE, "sealing_key": bytes(31) + b"x"},
        {**ROLE, "minimum": 2},
    ]
    refusals = [
        REFUSED,
        {**REFUSED, "request": bytes(31) + b"x"},
        {**REFUSED, "code": Refusal.REPLAYED},
        {**REFUSED, "rejected": {0: Refusal.UNREADABLE}},
    ]
    found = {f"role {i}": role_statement(**one).digest for i, one in enumerate(roles)}
    return found | {f"refusal {i}": refusal_statement(**one).digest for i, one in enumerate(refusals)}


def test_statements_that_differ_in_anything_differ() -> None:
    found = statements()
    assert len(found) == 12
    for first, second in itertools.combinations(found, 2):
        assert found[first] != found[second], (first, second)


def test_a_signature_holds_for_one_statement_and_one_key() -> None:
    said = role_statement(**ROLE)
    signature = said.signed(KEY)
    assert said.holds(signature, verifying_key=public_key_bytes(KEY))
    assert not said.holds(signature, verifying_key=public_key_bytes(SigningKey.generate()))
    for digest in statements().values():
        other = Statement(digest)
        assert other.holds(signature, verifying_key=public_key_bytes(KEY)) == (digest == said.digest)


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(63), b"x" * 200])
def test_what_is_no_signature_holds_for_nothing(signature: bytes) -> None:
    assert not role_statement(**ROLE).holds(signature, verifying_key=public_key_bytes(KEY))
    assert not role_statement(**ROLE).holds(signature, verifying_key=b"no key")
