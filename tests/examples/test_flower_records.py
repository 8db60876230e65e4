"""Clients with several records in Flower: one drawn record a reply, as examples/flower_records.py does it."""

from collections import Counter

import pytest
from accounted import accounted
from example_scripts import blobs, example_script

from shuffle_plugins.accounting import SampledRecordsRound
from shuffle_plugins.mechanisms import get


@pytest.fixture(scope="module")
def example():
    with example_script("flower_records") as module:
        yield module


@pytest.mark.parametrize("self_sampling", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_reply_is_a_randomised_gradient_of_one_drawn_record(example, self_sampling, monkeypatch):
    features, labels = blobs(40, 5)
    seen = Counter()
    gradient = example.gradient

    def watched(weights, record, label):
        client, place = (features == record).all(-1).nonzero()[0].tolist()
        assert labels[client, place] == label
        seen[client, place] += 1
        return gradient(weights, record, label)

    monkeypatch.setattr(example, "gradient", watched)
    setting = example.Setting(
        cohort=20, rounds=6, local_epsilon=9.0, learning_rate=4.0, self_sampling=self_sampling
    )
    row = example.run((features, labels), (features.flatten(0, 1), labels.flatten()), setting)
    asked = 40 if self_sampling else 20
    assert seen.total() == 6 * asked  # each client that was asked computes one gradient
    assert len({place for _, place in seen}) == 5
    assert row["rounds"] == 6
    assert 0 < row["epsilon_of_a_record_lower"] < row["epsilon_of_a_record"] < row["epsilon_of_a_client"]
    if not self_sampling:
        clients = get("privunit-g", local_epsilon=9.0, dim=100).round(population=40, cohort=20)
        assert row["epsilon_of_a_record"] == pytest.approx(
            accounted(SampledRecordsRound.of(clients, records_per_client=5), num_steps=6).epsilon(1e-6).upper,
            rel=1e-9,
        )
