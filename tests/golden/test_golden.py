"""No number moves unseen: ends of intervals may become tighter, and little else."""

from __future__ import annotations

import pytest
from answers import answer, differences, read
from rooms import ROOMS

_FAST = {"accounting": 24, "command_line": 24, "mechanisms": 6, "protocols": 0, "opacus": 6}
"""Of each so many questions one is asked by a fast test, of others none: a plan takes seconds."""

_CASES = [
    pytest.param(
        room, name, id=f"{room}-{name}", marks=[] if fast and place % fast == 0 else pytest.mark.slow
    )
    for room, asked in ROOMS.items()
    for fast in [_FAST.get(room, 0)]
    for place, name in enumerate(asked)
]
_RECORDED = {room: read(room) for room in ROOMS}


@pytest.mark.parametrize(("room", "name"), _CASES)
def test_the_answer_is_the_recorded_one(room: str, name: str) -> None:
    assert not list(differences(answer(ROOMS[room][name]), _RECORDED[room][name], at=name))


@pytest.mark.parametrize("room", ROOMS)
def test_every_recorded_answer_is_asked_for(room: str) -> None:
    assert set(_RECORDED[room]) == set(ROOMS[room])


def test_a_number_that_moved_is_seen() -> None:
    old = {"upper": 1.0, "lower": 1.0, "bounds": [["pair", 2.0], ["none", float("inf")]], "steps": 3}
    free = {**old, "upper": 0.5, "lower": 1.5, "bounds": [["pair", 2.0 + 1e-9], ["none", float("inf")]]}
    moved = {"upper": 1.001, "lower": 0.999, "bounds": [["pair", 2.1], ["none", 1e300]], "steps": 3.0}
    assert not list(differences(free, old))
    assert len(list(differences(moved, old))) == 5
