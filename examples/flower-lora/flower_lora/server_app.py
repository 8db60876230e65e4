"""The server: FedAvg on sums of adapters, with accuracy and certified ε after every round."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, SharedSumStage, ShuffleStrategy

from flower_lora import task
from shuffle_plugins.accounting import Adversary
from shuffle_plugins.core import rounded
from shuffle_plugins.protocols import VectorSum

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    named, delta = str(config["model"]), float(config["delta"])
    test = task.test_examples(str(config["data-dir"]))
    model = task.adapted(named)
    start = ArrayRecord(task.adapters(model))
    population, cohort = int(config["population"]), int(config["cohort"])
    protocol = VectorSum.calibrated(
        dim=sum(numbers.numel() for numbers in task.adapters(model).values()),
        radius=float(config["clipping-norm"]),
        cohort=cohort,  # nothing is released with fewer answers
        population=population,
        epsilon=float(config["epsilon"]),
        delta=delta,
        num_steps=int(config["num-server-rounds"]),
    )
    aggregators = task.simulated_nodes(context).aggregator_public_keys
    strategy = ShuffleStrategy(
        FedAvg(),
        randomizer=protocol,
        # without aggregators this process adds up, and is trusted with clients' shares of the sum
        shuffler=SharedSumStage(aggregator_public_keys=aggregators) if aggregators else None,
        sampling=FixedSize(cohort),
        population=population,
        delta=delta,
        max_epsilon=float(config["epsilon"]),
        ledger=str(config["ledger-file"]) or None,
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        task.adapt(model, arrays.to_torch_state_dict())
        accuracy = task.accuracy(model, test, named=named)
        observer, server = (
            rounded(strategy.accountant.epsilon(delta, adversary=adversary, lower=False).upper, up=True)
            for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER)
        )
        print(
            f"round {server_round}: accuracy {accuracy:.1%}, certified ε at δ = {delta:g}: "
            f"{observer} against an observer of the model, {server} against the server",
            flush=True,
        )
        return MetricRecord({"accuracy": accuracy})

    try:
        strategy.start(
            grid=grid,
            initial_arrays=start,
            num_rounds=int(config["num-server-rounds"]),
            timeout=float(config["round-timeout"]),
            evaluate_fn=evaluate,
        )
    except PrivacyBudgetExhausted as end:
        print(f"the budget is spent: {end}", flush=True)
    if config["adapter-folder"] and strategy.arrays is not None:
        task.adapt(model, strategy.arrays.to_torch_state_dict())
        # the base model's embeddings are nobody's adapter; PEFT would ask the hub about them
        model.save_pretrained(str(config["adapter-folder"]), save_embedding_layers=False)
