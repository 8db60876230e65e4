"""The server: FedAvg of the global model and ψ, from sums or shuffled reports, and the certified ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, PrivateEvaluation, ShuffleStrategy

from flower_adaped import task
from shuffle_plugins.core import rounded

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    delta, population = float(config["delta"]), int(config["population"])
    method, initial = task.method(config), task.initial(config)
    strategy = ShuffleStrategy(
        FedAvg(min_evaluate_nodes=population, min_available_nodes=population),
        **reports(config, dim=sum(value.numel() for value in initial.values())),
        sampling=FixedSize(population),
        population=population,
        ledger=str(config["ledger-file"]) or None,
        delta=delta,
        max_epsilon=float(config["max-epsilon"]) or None,
        evaluation=evaluation(config),
    )

    def show(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        models = method.received(arrays.to_torch_state_dict())
        accuracy = task.accuracy(models.global_model, task.test_examples(str(config["data-dir"])))
        spent = strategy.spending().observer.upper
        print(
            f"round {server_round}: global model {accuracy:.1%}, ψ {float(models.dissimilarity):.2f}, "
            f"certified ε at δ = {delta:g}: {rounded(spent, up=True)} against an observer of the model",
            flush=True,
        )
        return MetricRecord({"global-accuracy": accuracy, "epsilon": spent})

    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(task.state_dict(initial)),
            num_rounds=int(config["num-server-rounds"]),
            timeout=float(config["round-timeout"]),
            evaluate_fn=show,
        )
    except PrivacyBudgetExhausted as end:
        print(f"the budget is spent: {end}", flush=True)
        return
    for number, told in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: mean accuracy of the clients' own models {told['accuracy']:.1%}", flush=True)


def reports(config: Mapping[str, Any], *, dim: int) -> dict[str, Any]:
    """What clients report: their parts of a sum, or each a randomised report."""
    name, radius = str(config["randomizer"]), float(config["clipping-norm"])
    if name not in task.SUMS:
        return {"randomizer": name, "local_epsilon": float(config["local-epsilon"]), "clipping_norm": radius}
    return {
        "randomizer": task.SUMS[name].calibrated(
            dim=dim,
            radius=radius,
            cohort=int(config["population"]),
            population=int(config["population"]),
            epsilon=float(config["epsilon"]),
            delta=float(config["delta"]),
            num_steps=int(config["num-server-rounds"]),
        )
    }


def evaluation(config: Mapping[str, Any]) -> PrivateEvaluation | Literal["raw"] | None:
    """What clients tell of their own models."""
    match str(config["evaluation"]):
        case "raw":
            return "raw"
        case "private":
            summed = str(config["randomizer"]) in task.SUMS
            cost = "noise_multiplier" if summed else "local_epsilon"
            asked = float(config["evaluation-noise" if summed else "evaluation-epsilon"])
            return PrivateEvaluation(metrics={"accuracy": (0, 1)}, every=5, **{cost: asked})
        case "none":
            return None
        case other:
            raise ValueError(f'evaluation is "raw", "private" or "none", got {other!r}')
