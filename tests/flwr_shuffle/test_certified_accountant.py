"""The accountant behind Flower's protocol, beside Flower's own and in Flower's own strategy.

The cases follow Flower's contract (flwr 1.42, ``supercore/privacy_accounting``); its own tests are not in the
wheel, and are rebuilt here.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

serverapp = pytest.importorskip("flwr.serverapp")
if not hasattr(serverapp, "PrivacyAccountant"):
    pytest.skip("Flower before 1.42 has no accountants", allow_module_level=True)

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import (  # noqa: E402
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted  # noqa: E402
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg  # noqa: E402
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant  # noqa: E402
from flwr_shuffle import CertifiedAccountant, InProcessGrid  # noqa: E402

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
POISSON, DRAWN, NONE = (
    SamplingMethod.POISSON,
    SamplingMethod.WITHOUT_REPLACEMENT,
    SamplingMethod.NO_AMPLIFICATION,
)


def config(
    method: SamplingMethod = NONE,
    relation: NeighboringRelation = ADD,
    *,
    population: int = 1_000,
    max_epsilon: float | None = None,
) -> PrivacyConfig:
    return PrivacyConfig(
        target_delta=1e-6,
        population_size=population,
        neighboring_relation=relation,
        sampling_method=method,
        max_epsilon=max_epsilon,
    )


@pytest.mark.parametrize(("method", "relation"), [(NONE, ADD), (DRAWN, REPLACE), (POISSON, ADD)])
@pytest.mark.parametrize("size", [1_000, 100])
def test_the_same_events_cost_less_than_by_renyi_divergences(
    method: SamplingMethod, relation: NeighboringRelation, size: int
) -> None:
    """And not much less where nothing is sampled: the noise multiplier means the same."""
    ours, theirs = (each(config(method, relation)) for each in (CertifiedAccountant, RdpAccountant))
    for each in (ours, theirs):
        each.compose(GaussianPrivacyEvent(4.0, size, 1_000), 10)
    spent = ours.get_privacy_spent()
    assert spent.epsilon == ours.get_epsilon(1e-6) < theirs.get_epsilon(1e-6)
    assert (spent.delta, spent.num_releases, spent.accounting_method) == (1e-6, 10, "certified-pld")
    if method is NONE or size == 1_000:
        assert 3.7472 < spent.epsilon < 3.748  # exact 3.74722
    interval = ours.epsilon_interval()
    assert interval.neighbouring_relation == relation.value
    assert 0 < interval.lower <= interval.upper == spent.epsilon
    assert ours.get_delta(spent.epsilon) <= 1e-6 * (1 + 1e-6)


def test_events_that_nothing_samples_are_one_gaussian() -> None:
    many, one = CertifiedAccountant(config()), CertifiedAccountant(config())
    for size in range(1, 1_001):
        many.compose(GaussianPrivacyEvent(40.0, size, 1_000))
    one.compose(GaussianPrivacyEvent(40 / 1_000**0.5, 1_000, 1_000))
    assert many.get_epsilon(1e-6) == pytest.approx(one.get_epsilon(1e-6), rel=1e-4)
    assert many.get_delta(many.get_epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(("method", "relation"), [(NONE, ADD), (DRAWN, REPLACE)])
def test_a_limit_is_looked_at_before_the_release(
    method: SamplingMethod, relation: NeighboringRelation
) -> None:
    event = GaussianPrivacyEvent(2.0, 100, 1_000)
    ours = CertifiedAccountant(config(method, relation, max_epsilon=5.0))
    while not ours.would_exceed(event):
        ours.compose(event)
    assert ours.get_epsilon(1e-6) <= 5.0
    assert ours.would_exceed(event, count=3)
    assert not ours.would_exceed(event, max_epsilon=20.0)
    assert ours.get_epsilon(1e-6) <= 5.0
    before = ours.num_releases
    ours.compose(event)
    assert ours.num_releases == before + 1
    assert ours.get_epsilon(1e-6) > 5.0
    with pytest.raises(ValueError, match="max_epsilon"):
        ours.would_exceed(event, max_epsilon=float("nan"))
    with pytest.raises(ValueError, match="give max_epsilon"):
        CertifiedAccountant(config()).would_exceed(event)


def test_states_are_json_and_forget_nothing() -> None:
    ours = CertifiedAccountant(config(POISSON, ADD))
    ours.compose(GaussianPrivacyEvent(1.0, 100, 1_000), 5)
    early = ours.state_dict()
    ours.compose(GaussianPrivacyEvent(2.0, 50, 1_000))
    state = json.loads(json.dumps(ours.state_dict()))
    loaded = CertifiedAccountant(config(POISSON, ADD))
    loaded.load_state_dict(state)
    assert loaded.get_epsilon(1e-6) == ours.get_epsilon(1e-6)
    assert loaded.state_dict() == state
    with pytest.raises(ValueError, match="would be forgotten"):
        ours.load_state_dict(early)
    other = CertifiedAccountant(config(POISSON, ADD))
    other.compose(GaussianPrivacyEvent(500.0, 100, 1_000), 6)
    with pytest.raises(ValueError, match="would be forgotten"):
        ours.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="another PrivacyConfig"):
        CertifiedAccountant(config()).load_state_dict(state)
    with pytest.raises(ValueError, match="damaged"):
        CertifiedAccountant(config(POISSON, ADD)).load_state_dict({**state, "compositions": [{"event": {}}]})
    with pytest.raises(ValueError, match="not a state"):
        loaded.load_state_dict({**state, "backend": "rdp"})


def test_events_of_another_population_are_refused() -> None:
    ours = CertifiedAccountant(config())
    for ask in (ours.compose, lambda event: ours.would_exceed(event, max_epsilon=1.0)):
        with pytest.raises(ValueError, match="population_size is 50"):
            ask(GaussianPrivacyEvent(1.0, 10, 50))
    with pytest.raises(ValueError, match="count"):
        ours.compose(GaussianPrivacyEvent(1.0, 10, 1_000), 0)
    assert ours.num_releases == 0
    assert ours.get_epsilon(1e-6) == 0.0


def app() -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message, context):
        moved = message.content["arrays"]["w"].numpy() + 0.1
        content = {
            "arrays": ArrayRecord({"w": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    return client


@pytest.mark.parametrize("accountant", [CertifiedAccountant, RdpAccountant])
def test_flower_s_own_strategy_runs_with_it_by_one_changed_line(accountant: type) -> None:
    """Until the budget is used up: the smaller ε has more rounds."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0),
        noise_multiplier=4.0,
        clipping_norm=1.0,
        num_sampled_clients=20,
        accountant=accountant(config(population=20, max_epsilon=3.75)),
    )
    rounds = 10 if accountant is CertifiedAccountant else 8
    model = ArrayRecord({"w": Array(np.zeros(3))})
    strategy.start(InProcessGrid(app(), num_nodes=20), model, num_rounds=rounds)
    assert strategy.privacy_spent().num_releases == rounds
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(InProcessGrid(app(), num_nodes=20), model, num_rounds=2)
