"""A host that a stranger wrote, as the page on extending shows it: what it charges, refuses and keeps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accounted import accounted

from shuffle_plugins.ledger import BudgetLedger, LedgerError, RoundState
from shuffle_plugins.mechanisms import get

PAGE = (Path(__file__).parents[2] / "docs/guides/extending.md").read_text()
MODULE, USE = re.findall(r"^```python\n(.*?)^```", PAGE.split("## A host of your own")[1], re.M | re.S)
POPULATION, COHORT, DIM = 400, 100, 3
BUDGET = {"max_epsilon": 50.0, "delta": 1e-6}


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's module, imported as a user would."""
    module = ModuleType("my_host")
    exec(compile(MODULE, "my_host.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "my_host", module)
    return module


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[BudgetLedger]:
    with BudgetLedger(tmp_path / "host.db", model="line") as opened:
        yield opened


def built(name: str) -> Any:
    if name == "vector-sum":
        return get(name, dim=DIM, cohort=COHORT, noise_multiplier=5.0, radius=2.0)
    return get(name, local_epsilon=3.0, dim=DIM, radius=2.0)


def ones(model: torch.Tensor, clients: list[int]) -> torch.Tensor:
    assert model.shape == (DIM,)
    assert len(set(clients)) == len(clients)
    assert set(clients) <= set(range(POPULATION))
    return torch.ones(len(clients), DIM)


def host(page: ModuleType, ledger: BudgetLedger, rows_of: Any = ones, **changed: Any) -> Any:
    given = {"population": POPULATION, "cohort": COHORT, "ledger": ledger, **BUDGET, **changed}
    return page.Host(given.pop("mechanism", built("privunit")), rows_of, **given)


@pytest.mark.parametrize("name", ["privunit", "vector-sum"])
def test_it_releases_the_sum_and_charges_what_the_mechanism_costs(
    page: ModuleType, ledger: BudgetLedger, name: str
) -> None:
    mechanism = built(name)
    own = host(page, ledger, mechanism=mechanism)
    for _ in range(3):
        own.step(rate=-1.0, piece=30)
    reports = COHORT if mechanism.cohort is None else 1
    deviation = (3 * reports * mechanism.worst_variance) ** 0.5 / COHORT
    assert float((own.model - 3.0).norm()) < 12 * deviation, "three means of ones, and no bias"
    alone = accounted(mechanism.round(population=POPULATION, cohort=COHORT), num_steps=3)
    for accountant in (own.accountant, ledger.accountant()):
        charged = accountant.epsilon(1e-6, lower=False).upper
        assert charged == pytest.approx(alone.epsilon(1e-6, lower=False).upper, rel=1e-6)


def test_the_next_process_goes_on_with_model_and_budget(page: ModuleType, ledger: BudgetLedger) -> None:
    first = host(page, ledger)
    first.step(rate=0.1)
    with BudgetLedger(ledger.path, model="line") as again:
        second = host(page, again)
        assert torch.equal(second.model, first.model)
        assert second.accountant.num_rounds == 1
        second.step(rate=0.1)
    with pytest.raises(RuntimeError, match="another host"):
        first.step(rate=0.1)
    with BudgetLedger(ledger.path, model="line") as longer, pytest.raises(LedgerError, match="other arrays"):
        host(page, longer, mechanism=get("privunit", local_epsilon=3.0, dim=DIM + 1))


def test_a_cohort_of_another_size_is_refused_and_stays_charged(
    page: ModuleType, ledger: BudgetLedger
) -> None:
    with pytest.raises(ValueError, match="noise of 100 clients, the cohort is 99"):
        host(page, ledger, mechanism=built("vector-sum"), cohort=COHORT - 1)
    assert ledger.rounds() == []
    own = host(page, ledger, lambda model, clients: torch.ones(len(clients) + 1, DIM))
    with pytest.raises(ValueError, match="each has one row"):
        own.step(rate=0.1)
    assert not own.model.any()
    (left,) = ledger.rounds()
    assert left.state is RoundState.OPEN
    assert ledger.accountant().num_rounds == own.accountant.num_rounds == 1


def test_beyond_the_budget_nothing_is_drawn(page: ModuleType, ledger: BudgetLedger) -> None:
    own = host(
        page,
        ledger,
        max_epsilon=1.01
        * accounted(built("privunit").round(population=POPULATION, cohort=COHORT))
        .epsilon(1e-6, lower=False)
        .upper,
    )
    own.step(rate=0.1)
    kept = own.model.clone()
    with pytest.raises(RuntimeError, match="over the budget"):
        own.step(rate=0.1)
    assert torch.equal(own.model, kept)
    assert len(ledger.rounds()) == 1


def test_the_page_fits_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(USE, "extending.md", "exec"), names)
    assert torch.allclose(names["host"].model, torch.tensor([0.5, -0.25, 0.0, 0.75]), atol=0.5)
    assert "ε ∈ [" in capsys.readouterr().out


def test_two_hosts_on_one_ledger_do_not_spend_its_budget_twice(
    page: ModuleType, ledger: BudgetLedger
) -> None:
    first, second = host(page, ledger), host(page, ledger)
    first.step(rate=0.1)
    first.step(rate=0.1)
    with pytest.raises(RuntimeError, match="another host"):
        second.step(rate=0.1)
    again = host(page, ledger)
    again.step(rate=0.1)
    assert len(ledger.rounds()) == again.accountant.num_rounds == 3
    with pytest.raises(ValueError, match="at least one row"):
        again.step(rate=0.1, piece=-1)
    assert len(ledger.rounds()) == 3
