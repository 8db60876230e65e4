"""The interface that hosts know: of local randomizers, multi-message sums, and one that a stranger wrote."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from shuffle_plugins.mechanisms import (
    MechanismSpec,
    PrivateSum,
    SumSpec,
    available,
    get,
    registry,
    spec_from_json,
)
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.randomness import SeededRandomness

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "extending.md"
COHORT = 40
NAMES = [
    "privunit",
    "linf-bit-planes",
    "discrete-laplace",
    "vector-sum",
    "multi-message",
    "unary-l1-sum",
    "laplace-vector-sum",
    "poisson-binomial",
    "signed-sum",
]  # of the decoy sum, whose clients make several reports, tests/flwr_shuffle/test_decoys.py


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page on extending defines and registers under "signed-sum"."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (code,) = [
        code
        for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        if "SignedSum" in code
    ]
    module = ModuleType("my_sums")
    monkeypatch.setitem(sys.modules, "my_sums", module)  # dataclasses look their module up
    exec(code, vars(module))
    return vars(module)


def built(name: str) -> PrivateSum:
    dim = 1 if name in ("signed-sum", "binary-rr") else 6
    if registry.kind_of(name) is registry.Kind.SUMS:
        return get(name, dim=dim, cohort=COHORT, noise_multiplier=4.0, radius=2.0)
    return get(name, dim=dim, local_epsilon=3.0, radius=2.0)


def rows(mechanism: PrivateSum, count: int = COHORT) -> torch.Tensor:
    x = torch.randn(count, mechanism.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x / x.abs().sum(dim=1, keepdim=True).clamp(min=1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", [*available(registry.Kind.SUMS), "signed-sum"])
def test_a_row_that_is_not_finite_is_one_of_zeros(name: str, bad: float) -> None:
    """And nothing else in the round depends on it."""
    mechanism = built(name)
    x = rows(mechanism)
    x[3] = 0
    wanted = mechanism.randomize(x, randomness=SeededRandomness(1), clip=True)
    share = mechanism.share(x, randomness=SeededRandomness(2))
    x[3, -1] = bad
    assert mechanism.randomize(x, randomness=SeededRandomness(1), clip=True).to_bytes() == wanted.to_bytes()
    assert torch.equal(mechanism.share(x, randomness=SeededRandomness(2)), share)


@pytest.mark.parametrize("name", NAMES)
def test_totals_of_groups_add_up_to_the_estimate(name: str) -> None:
    mechanism = built(name)
    reports = mechanism.randomize(rows(mechanism), randomness=SeededRandomness(2))
    whole = mechanism.total(reports)
    parts = mechanism.total(reports.narrow(0, 13)) + mechanism.total(reports.narrow(13, COHORT))
    if mechanism.must_be_summed:
        assert whole.dtype == torch.int64
        assert torch.equal(parts, whole)
    assert torch.allclose(parts, whole, rtol=1e-5, atol=1e-4)
    estimate = mechanism.estimate(whole, reports=COHORT)
    assert torch.equal(estimate, mechanism.sum(reports))
    assert torch.allclose(mechanism.aggregate(reports), estimate / COHORT)


def test_a_sum_is_for_its_cohort_and_clips() -> None:
    mechanism = built("vector-sum")
    with pytest.raises(ValueError, match="40 clients"):
        mechanism.randomize_sum(torch.zeros(3, 6))
    with pytest.raises(ValueError, match="always clips"):
        mechanism.randomize(torch.zeros(3, 6), clip=False)


def test_kinds_tell_mechanisms_apart() -> None:
    assert set(available()) == {name for kind in registry.Kind for name in available(kind)}
    assert available("sums") == (
        "decoy-vector-sum",
        "laplace-vector-sum",
        "multi-message",
        "poisson-binomial",
        "signed-sum",
        "unary-l1-sum",
        "vector-sum",
        "windowed-sum",
    )
    assert "signed-sum" not in available(*registry.ONE_MESSAGE)
    assert {"k-rr", "oue"} <= set(available("categories"))
    assert registry.kind_of("privunit") is registry.Kind.VECTORS
    with pytest.raises(ValueError, match="kind must be one of"):
        available("vector")
    with pytest.raises(ValueError, match="no ε0 of single reports"):
        registry.blanket("vector-sum", local_epsilon=1.0, dim=3)


def test_sums_are_built_by_noise_or_by_their_fields() -> None:
    fields = {"dim": 3, "cohort": 60, "levels": 6, "coins": 40}
    assert get("vector-sum", **fields) == VectorSum(**fields)
    by_noise = get("multi-message", dim=6, cohort=60, noise_multiplier=3.0, frame="rotation", seed=4)
    assert by_noise == BallSum.with_noise(
        dim=6, cohort=60, noise_multiplier=3.0, frame="rotation", seed=4, radius=1.0
    )
    with pytest.raises(TypeError, match=r"unexpected keyword argument .level."):
        get("vector-sum", dim=3, cohort=60, noise_multiplier=3.0, level=2)
    with pytest.raises(TypeError, match="local_epsilon"):
        get("privunit", dim=3)


@pytest.mark.parametrize(
    "name",
    ["vector-sum", "multi-message", "poisson-binomial", "unary-l1-sum", "laplace-vector-sum", "signed-sum"],
)
def test_a_sum_is_agreed_on_as_text(name: str) -> None:
    mechanism = built(name)
    spec = SumSpec(protocol=mechanism)
    assert f'"cohort":{COHORT}' in spec.to_json()
    again = spec_from_json(spec.to_json())
    assert again == spec
    assert again.build(dim=mechanism.dim) == mechanism
    assert again.fingerprint(dim=mechanism.dim) == spec.fingerprint(dim=mechanism.dim)
    assert (again.must_be_summed, again.cohort) == (True, COHORT)
    assert again.report_bytes(dim=mechanism.dim) == mechanism.layout.report_bytes
    with pytest.raises(ValueError, match="build it with dim=77"):
        again.build(dim=77)


def test_what_was_written_on_the_page_runs(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    signed = page["signed"]
    assert isinstance(signed, page["SignedSum"])
    assert abs(float(signed.estimate(page["total"], reports=1_000))) < 6 * signed.worst_variance**0.5


def test_a_sum_that_hides_its_cohort_is_not_agreed_on(page: dict[str, Any]) -> None:
    """Its reports would be shuffled and seen one by one."""

    class Summed(page["SignedSum"]):  # type: ignore[misc]
        name = "summed"
        cohort: None = None
        must_be_summed = True

    Summed = dataclass(frozen=True, kw_only=True)(Summed)
    registry.register("summed", Summed)
    with pytest.raises(ValueError, match="added up only, but its cohort is None"):
        SumSpec(protocol=Summed(levels=3, coins=5))

    class Joined(type(built("privunit"))):  # type: ignore[misc]
        name = "joined"
        cohort = COHORT

    registry.register("joined", Joined)
    with pytest.raises(ValueError, match="added up only"):
        MechanismSpec(name="joined", local_epsilon=1.0).build(dim=6)
