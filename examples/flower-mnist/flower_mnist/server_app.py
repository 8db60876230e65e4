"""The server: FedAvg on shuffled reports, with accuracy and certified ε after every round."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    Cyclic,
    FixedSize,
    MixNodeStage,
    Poisson,
    PrivateEvaluation,
    SelfSampling,
    SharedSumStage,
    ShuffleStrategy,
)

from flower_mnist import task
from shuffle_plugins.accounting import Adversary
from shuffle_plugins.core import rounded
from shuffle_plugins.protocols import VectorSum, WindowedSum, window_coefficients

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    delta = float(config["delta"])
    test = task.test_examples(str(config["data-dir"]))
    model = task.network(test[0])
    sent = reports(context, dim=sum(numbers.numel() for numbers in model.state_dict().values()))
    strategy = ShuffleStrategy(
        FedAvg(),
        **sent,
        sampling=sampling(config),
        population=int(config["population"]),
        ledger=str(config["ledger-file"]) or None,
        delta=delta,
        max_epsilon=float(config["max-epsilon"]) or None,
        budget_against=Adversary(str(config["budget-against"])),
        evaluation=evaluation(config, summed=not isinstance(sent["randomizer"], str)),
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy = task.accuracy(model, test)
        spent = {
            adversary: rounded(
                strategy.accountant.epsilon(delta, adversary=adversary, lower=False).upper, up=True
            )
            for adversary in Adversary
        }
        print(
            f"round {server_round}: accuracy {accuracy:.1%}, certified ε at δ = {delta:g}: "
            f"{spent[Adversary.MODEL_OBSERVER]} against an observer of the model, "
            f"{spent[Adversary.SERVER]} against the server, "
            f"{spent[Adversary.LOCAL]} if nobody is trusted",
            flush=True,
        )
        return MetricRecord({"accuracy": accuracy})

    try:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=int(config["num-server-rounds"]),
            timeout=float(config["round-timeout"]),
            evaluate_fn=evaluate,
        )
    except PrivacyBudgetExhausted as end:
        print(f"the budget is spent: {end}", flush=True)
    if config["model-file"] and strategy.arrays is not None:
        torch.save(strategy.arrays.to_torch_state_dict(), str(config["model-file"]))


def reports(context: Context, *, dim: int) -> dict[str, Any]:
    """What clients report and who hides whose report is whose, as the run-config says."""
    config, simulated = context.run_config, task.simulated_nodes(context)
    radius = float(config["clipping-norm"])
    if aggregators := (
        str(config["aggregator-public-keys"]).split(",")
        if config["aggregator-public-keys"]
        else simulated.aggregator_public_keys
    ):
        common = {
            "dim": dim,
            "cohort": int(config["cohort"]),
            "noise_multiplier": float(config["noise-multiplier"]),
            "radius": radius,
            "overhead": 0.2,  # of the noise's variance, for fewer coins
        }
        rounds, band = int(config["num-server-rounds"]), int(config["band"])
        coefficients = window_coefficients(rounds=rounds, band=band)
        return {
            "randomizer": VectorSum.with_noise(**common)
            if band == 1
            else WindowedSum.with_noise(**common, coefficients=coefficients),
            "shuffler": SharedSumStage(aggregator_public_keys=aggregators, verified=bool(config["verified"])),
        }
    mixers = str(config["mixer-public-key"]) or simulated.mixer_public_keys
    return {
        "randomizer": str(config["randomizer"]),
        "local_epsilon": float(config["local-epsilon"]),
        "clipping_norm": radius,
        "shuffler": MixNodeStage(mixer_public_key=mixers) if mixers else None,
        "minimum_reports": int(config["minimum-reports"]) or None,
    }


def evaluation(config: dict[str, str | int | float | bool], *, summed: bool) -> PrivateEvaluation | None:
    """What clients are asked of the model, on their own images: as they report on it."""
    local_epsilon = float(config["evaluation-epsilon"])
    if not local_epsilon:
        return None
    if summed:
        noise = float(config["noise-multiplier"])
        return PrivateEvaluation(metrics={"accuracy": (0, 1)}, noise_multiplier=noise, every=5)
    return PrivateEvaluation(metrics={"accuracy": (0, 1)}, local_epsilon=local_epsilon, every=5)


def sampling(config: dict[str, str | int | float | bool]) -> FixedSize | Poisson | SelfSampling:
    """Who takes part, as the run-config says."""
    rate = float(config["participation"])
    match config["sampling"]:
        case "fixed-size":
            return FixedSize(int(config["cohort"]))
        case "cyclic":
            return Cyclic(int(config["cohort"]))
        case "poisson":
            return Poisson(rate)
        case "self":
            return SelfSampling(rate)
    raise ValueError(f'sampling is "fixed-size", "cyclic", "poisson" or "self", got {config["sampling"]!r}')
