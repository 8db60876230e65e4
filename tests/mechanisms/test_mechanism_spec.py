from __future__ import annotations

import json
import pickle

import pytest

from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.spec import MAX_TEXT, MechanismSpec

SPEC = MechanismSpec(
    name="l2-block", local_epsilon=2.1, radius=0.3, options=(("signs", 2), ("frame", "rotation"))
)


def test_text_and_back() -> None:
    text = SPEC.to_json()
    assert MechanismSpec.from_json(text) == SPEC
    assert (
        text
        == '{"local_epsilon":2.1,"name":"l2-block","options":{"frame":"rotation","signs":2},"radius":0.3}'
    )


def _altered(**changes: object) -> str:
    fields = json.loads(SPEC.to_json())
    fields.update(changes)
    return json.dumps(fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 4000,
        _altered(extra=1),
        _altered(local_epsilon=float("nan")),
        _altered(local_epsilon=10**400),
        _altered(radius=10**400),
        _altered(options={"signs": None}),
        _altered(options={"signs": float("inf")}),
        _altered(options={"local_epsilon": 400.0}),
        _altered(options={"not an identifier": 4}),
        '{"local_epsilon":1.0,"local_epsilon":2.0,"name":"laplace","options":{},"radius":1.0}',
        SPEC.to_json() + " " * MAX_TEXT,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        MechanismSpec.from_json(text)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [("k-rr", (), "vectors"), ("l1-hadamard", (("public_seed", 3),), "cannot be shuffled")],
)
def test_what_cannot_be_agreed_on_is_refused(name, options, match) -> None:
    with pytest.raises(ValueError, match=match):
        MechanismSpec(name=name, local_epsilon=1.0, options=options).build(dim=8)


def test_a_mechanism_of_another_epsilon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from shuffle_plugins.mechanisms import registry

    def generous(*, local_epsilon: float, dim: int, radius: float = 1.0) -> object:
        return get("laplace", local_epsilon=2 * local_epsilon, dim=dim, radius=radius)

    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("generous", generous)
    with pytest.raises(ValueError, match="was asked for local_epsilon"):
        MechanismSpec(name="generous", local_epsilon=1.0).build(dim=3)


def test_fingerprints_tell_everything_apart() -> None:
    base = {"name": "l2-block", "local_epsilon": 2.1, "radius": 0.3, "options": (("signs", 2),)}
    variants = [
        MechanismSpec(**(base | change))  # type: ignore[arg-type]
        for change in (
            {},
            {"name": "sqkr"},
            {"local_epsilon": 2.2},
            {"radius": 0.30000000000000004},
            {"options": ()},
            {"options": (("signs", 3),)},
            {"options": (("signs", 2.0),)},
            {"options": (("signs", True),)},
            {"options": (("signs", "2"),)},
        )
    ]
    prints = {spec.fingerprint(dim=dim) for spec in variants for dim in (4, 5)}
    assert len(prints) == 2 * len(variants)
    assert {len(digest) for digest in prints} == {32}


def test_a_fingerprint_does_not_depend_on_the_process() -> None:
    assert SPEC.fingerprint(dim=7).hex() == "b5fbb3c549b2d5163d43c7797baea0c3dc38c11b2322195ae9cfcafe8597b98e"


def test_building_twice_costs_once_and_a_spec_stays_small() -> None:
    assert SPEC.build(dim=64) is SPEC.build(dim=64)
    back = pickle.loads(pickle.dumps(SPEC))
    assert back == SPEC
    assert back.build(dim=64) is SPEC.build(dim=64)


def test_one_and_true_are_not_built_alike() -> None:
    """Equal and hash-equal in Python, so a cache keyed by the spec itself would confuse them."""
    one = MechanismSpec(name="l2-block", local_epsilon=2.0, options=(("signs", 1),))
    true = MechanismSpec(name="l2-block", local_epsilon=2.0, options=(("signs", True),))
    one.build(dim=8)
    with pytest.raises(ValueError, match="signs"):
        true.build(dim=8)
