"""A kind of round that this package does not know, as the page on extending shows it."""

import importlib
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from shuffle_plugins.accounting import (
    PrivacyTarget,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
)

PAGE = (Path(__file__).parents[3] / "docs/guides/extending.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.split("## A round of your own")[1], re.M | re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The page's module, imported as a user would."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "gaussian_round.py").write_text(BLOCKS[0])
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("gaussian_round")
    finally:
        sys.path.remove(str(folder))


def exact_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Of Gaussian mechanisms composed, in closed form: Balle, Wang 2018, Theorem 8."""
    mu = math.sqrt(steps) / noise_multiplier

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return float(ndtr(mu / 2 - epsilon / mu) - tail - delta)

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1.0, 1), (4.0, 1), (4.0, 50), (30.0, 1000)])
def test_its_interval_holds_the_closed_form(page: ModuleType, noise_multiplier: float, steps: int) -> None:
    accountant = ShuffleAccountant()
    own = page.GaussianRound(noise_multiplier=noise_multiplier, population=100, cohort=100)
    accountant.step(own, num_steps=steps)
    exact, found = exact_epsilon(noise_multiplier, steps, 1e-6), accountant.epsilon(1e-6)
    assert 0.98 * exact < found.lower <= exact <= found.upper < 1.01 * exact
    assert accountant.charged_epsilon(1e-6) == found.upper
    assert found.upper_bound == "gaussian-sum, PLD"
    assert str(own) == "gaussian-sum round (n=100, k=100, full)"


def test_sampling_and_renyi_orders_apply_to_it(page: ModuleType) -> None:
    fields = {"noise_multiplier": 2.0, "population": 1000, "cohort": 10, "sampling": "without-replacement"}
    found = {}
    for method in ("pld", "rdp"):
        accountant = ShuffleAccountant(method=method)
        accountant.step(page.GaussianRound(**fields), num_steps=100)
        found[method] = accountant.epsilon(1e-6)
    assert (
        0 < found["pld"].lower < found["pld"].upper < found["rdp"].upper < exact_epsilon(2.0, 100, 1e-6) / 10
    )


def test_it_composes_with_rounds_of_the_package(page: ModuleType) -> None:
    own = page.GaussianRound(noise_multiplier=5.0, population=500, cohort=500)
    shuffled = ShuffleRound(local_epsilon=1.0, population=500, cohort=500, sampling=Sampling.FULL)
    coins = SumRound(sensitivity=20.0, trials=40_000, dim=1, population=500, cohort=500, attained=20)
    accountant = ShuffleAccountant()
    for each in (own, shuffled, coins, own):
        accountant.step(each)
    both = accountant.epsilon(1e-5)
    assert both.upper_bound == "blanket pair and covering Gaussian and gaussian-sum, PLD"
    assert 0 < both.lower < both.upper
    assert both.upper > PrivacyTarget(epsilon=9.0, delta=1e-5, num_steps=2).cost(own)
    assert not accountant.would_exceed(own, target_epsilon=2 * both.upper, delta=1e-5)
    assert accountant.would_exceed(own, target_epsilon=both.upper, delta=1e-5)


def test_its_state_is_saved_and_read(page: ModuleType) -> None:
    exec(BLOCKS[1], {})
    own = page.GaussianRound(noise_multiplier=5.0, population=500, cohort=500)
    assert own.state() == ("gaussian-sum", "full", "model-observer", 500, 500, 5.0)
    assert Round.from_state(own.state()) == page.GaussianRound.from_state(list(own.state())) == own
    for damaged in (own.state()[:-1], (*own.state(), 1), ("gaussian-sum", "full", "nobody", 500, 500, 5.0)):
        with pytest.raises(ValueError, match=r"not the state|adversary"):
            Round.from_state(damaged)
    with pytest.raises(ValueError, match="not the state of a SumRound"):
        SumRound.from_state(own.state())


def test_a_state_of_a_kind_that_is_not_imported_says_so() -> None:
    with pytest.raises(ValueError, match=r"no kind of round is called 'staircase'.*import the module"):
        Round.from_state(("staircase", "full", "model-observer", 9, 9))
    for damaged in ((), None, (3, 4), ("full",)):
        with pytest.raises(ValueError, match="not the state"):
            Round.from_state(damaged)


def test_two_kinds_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match="'laplace' already"):

        @dataclass(frozen=True, kw_only=True)
        class Another(Round):
            KIND = "laplace"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sampling": "epoch"}, "epoch"),
        ({"sampling": "poisson"}, "known size"),
        ({"sampling": "single-pass"}, "known size"),
        ({"adversary": "local"}, "local_epsilon"),
        ({"cohort": 99}, "full participation"),
        ({"cohort": 101}, "cohort"),
        ({"population": 0}, "population"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
    ],
    ids=str,
)
def test_the_fields_of_every_round_are_checked(page: ModuleType, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        page.GaussianRound(**({"noise_multiplier": 2.0, "population": 100, "cohort": 100} | wrong))
