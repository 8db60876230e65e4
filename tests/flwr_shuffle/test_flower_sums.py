"""Multi-message sums have no shuffle stage in Flower yet: they are refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, MechanismSpec, ShuffleStrategy

from shuffle_plugins.protocols import ScalarSum, VectorSum


@pytest.mark.parametrize(
    "chosen",
    [
        {"randomizer": VectorSum.name, "local_epsilon": 2.0, "clipping_norm": 1.0},
        {"randomizer": "vector-sum"},
        {"randomizer": MechanismSpec(name=ScalarSum.name, local_epsilon=2.0)},
    ],
)
def test_a_sum_of_many_messages_is_refused(chosen: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mix node of sealed reports cannot"):
        ShuffleStrategy(
            FedAvg(fraction_train=1.0, min_available_nodes=5),
            sampling=FixedSize(5),
            population=10,
            delta=1e-5,
            **chosen,
        )
