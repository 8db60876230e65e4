"""Flower's three quickstart apps, plain and with shuffled private updates: what accuracy is left at which ε.

Each app is rebuilt here after Flower's examples/quickstart-pytorch, -sklearn and -numpy (Apache-2.0): the
same models, local training and arguments, on data that need no hub. The network of quickstart-pytorch (62,006
parameters) gets MNIST in its 3 · 32 · 32 form in place of CIFAR-10; quickstart-sklearn's logistic regression
gets rows drawn from the normal distributions of scikit-learn's iris; quickstart-numpy adds random numbers to
one parameter, as it does at Flower's, and its "accuracy" is how near the parameter comes to what it is
expected to be, 1 + rounds / 2, in parts of that.

The private runs differ from the plain ones in two places, as in docs/guides/flower.md: ``ShuffleMod`` is the
client app's mod, and ``ShuffleStrategy`` is around FedAvg. All clients run in this process, one after
another.

    python examples/flower_quickstarts.py --data-dir DIR          # MNIST's IDX files, for quickstart-pytorch
    python examples/flower_quickstarts.py --apps numpy sklearn    # no data needed, half a minute
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM
from flwr_shuffle import ClientLimits, FixedSize, InProcessGrid, ShuffleMod, ShuffleStrategy
from mnist_idx import load_mnist
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from shuffle_plugins.protocols import VectorSum

RESULTS = Path(__file__).parent / "results" / "flower_quickstarts.json"
Arrays = list[NDArray[Any]]
Train = Callable[[int, Arrays], tuple[Arrays, int]]


@dataclass(frozen=True, kw_only=True)
class App:
    """One quickstart.

    Attributes:
        initial: the model at the start.
        train: a client's number and the model to the trained model and the number of its examples.
        accuracy: of a model.
    """

    initial: Arrays
    train: Train
    accuracy: Callable[[Arrays], float]

    @property
    def dim(self) -> int:
        """Parameters of the model."""
        return sum(array.size for array in self.initial)

    def client_app(self, *, mod: ShuffleMod | None = None) -> ClientApp:
        """The app's clients; with a mod, their updates leave randomised."""
        app = ClientApp(mods=[] if mod is None else [mod])

        @app.train()
        def _(message: Message, context: Context) -> Message:
            arrays = message.content["arrays"].to_numpy_ndarrays()
            trained, examples = self.train(int(context.node_config["partition-id"]), arrays)
            metrics = MetricRecord({"num-examples": examples})
            content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
            return Message(content, reply_to=message)

        return app


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How an app is run.

    Attributes:
        population: clients there are.
        cohort: clients of a round.
        rounds: of training.
        clipping_norm: radius that updates are clipped to.
        epsilon: for which the sum is calibrated, against an observer; None for one report each.
        local_epsilon: ε0 of one report, of ``privunit``; None for a sum.
        delta: δ.
        server_momentum: of FedAvgM, in the plain run as well; None for FedAvg.
        local_epochs: of quickstart-pytorch's clients.
        learning_rate: of quickstart-pytorch's clients.
    """

    population: int
    cohort: int
    rounds: int
    clipping_norm: float
    epsilon: float | None = None
    local_epsilon: float | None = None
    delta: float = 1e-5
    server_momentum: float | None = None
    local_epochs: int = 1
    learning_rate: float = 0.1

    def strategy(self, **arguments: Any) -> FedAvg:
        """Flower's strategy, which knows nothing of privacy."""
        if self.server_momentum is None:
            return FedAvg(fraction_evaluate=0.0, **arguments)
        return FedAvgM(fraction_evaluate=0.0, server_momentum=self.server_momentum, **arguments)

    def randomizer(self, dim: int) -> dict[str, Any]:
        """What the private run randomises by, as arguments of ``ShuffleStrategy``."""
        if self.epsilon is None:
            return {
                "randomizer": "privunit" if dim > 1 else "laplace",
                "local_epsilon": self.local_epsilon,
                "clipping_norm": self.clipping_norm,
            }
        protocol = VectorSum.calibrated(
            dim=dim,
            radius=self.clipping_norm,
            cohort=self.cohort,
            population=self.population,
            epsilon=self.epsilon,
            delta=self.delta,
            num_steps=self.rounds,
        )
        return {"randomizer": protocol}


# -- the apps -----------------------------------------------------------------------------------------------


def numpy_app(*, rounds: int) -> App:
    """quickstart-numpy: one parameter, to which every client adds a uniform number."""
    generator = np.random.default_rng(0)
    expected = 1 + rounds / 2

    def train(client: int, arrays: Arrays) -> tuple[Arrays, int]:
        return [array + generator.random(array.shape) for array in arrays], 1

    return App(
        initial=[np.ones((1, 1))],
        train=train,
        accuracy=lambda arrays: 1 - abs(float(arrays[0].item()) - expected) / expected,
    )


def iris_like(generator: np.random.Generator, *, each: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of each of iris's three kinds, from the normal distribution with its mean and covariance."""
    rows, kinds = load_iris(return_X_y=True)
    drawn = [
        generator.multivariate_normal(
            rows[kinds == kind].mean(axis=0), np.cov(rows[kinds == kind].T), size=each
        )
        for kind in range(3)
    ]
    return np.concatenate(drawn), np.repeat(np.arange(3), each)


def sklearn_app() -> App:
    """quickstart-sklearn: logistic regression on the four lengths of iris, one epoch of saga a round."""
    tests = iris_like(np.random.default_rng(1), each=1000)

    @cache
    def rows_of(client: int) -> tuple[NDArray[Any], NDArray[Any]]:
        return iris_like(np.random.default_rng([2, client]), each=4)

    def model_of(arrays: Arrays) -> LogisticRegression:
        model = LogisticRegression(max_iter=1, warm_start=True, solver="saga")
        model.classes_ = np.arange(3)
        model.coef_, model.intercept_ = (array.copy() for array in arrays)
        return model

    def train(client: int, arrays: Arrays) -> tuple[Arrays, int]:
        model = model_of(arrays)
        rows, kinds = rows_of(client)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one epoch does not converge, and need not
            model.fit(rows, kinds)
        return [model.coef_, model.intercept_], len(rows)

    return App(
        initial=[np.zeros((3, 4)), np.zeros(3)],
        train=train,
        accuracy=lambda arrays: float(model_of(arrays).score(*tests)),
    )


class Net(nn.Module):
    """The small convolutional network of PyTorch's "60 Minute Blitz", as in quickstart-pytorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


def as_cifar(images: Tensor) -> Tensor:
    """(n, 1, 28, 28) in [0, 1] as (n, 3, 32, 32) in [-1, 1]."""
    return functional.pad(images, (2, 2, 2, 2)).expand(-1, 3, -1, -1) * 2 - 1


def pytorch_app(split: tuple[Tensor, Tensor], tests: tuple[Tensor, Tensor], *, setting: Setting) -> App:
    """quickstart-pytorch: SGD with momentum 0.9 and batches of 32."""
    torch.manual_seed(0)
    net = Net()
    names = list(net.state_dict())
    images, labels = split
    order = torch.randperm(len(labels)).tensor_split(setting.population)
    test_images, test_labels = tests

    def load(arrays: Arrays) -> None:
        net.load_state_dict(
            {name: torch.from_numpy(array.copy()) for name, array in zip(names, arrays, strict=True)}
        )

    def train(client: int, arrays: Arrays) -> tuple[Arrays, int]:
        load(arrays)
        own = order[client]
        optimizer = torch.optim.SGD(net.parameters(), lr=setting.learning_rate, momentum=0.9)
        for _ in range(setting.local_epochs):
            for batch in own[torch.randperm(len(own))].split(32):
                optimizer.zero_grad()
                functional.cross_entropy(net(as_cifar(images[batch])), labels[batch]).backward()
                optimizer.step()
        return [value.numpy().copy() for value in net.state_dict().values()], len(own)

    def accuracy(arrays: Arrays) -> float:
        load(arrays)
        with torch.no_grad():
            guessed = torch.cat([net(as_cifar(part)).argmax(dim=1) for part in test_images.split(1000)])
        return float((guessed == test_labels).float().mean())

    return App(
        initial=[value.numpy().copy() for value in net.state_dict().values()], train=train, accuracy=accuracy
    )


# -- runs ---------------------------------------------------------------------------------------------------


class Curve:
    """Keeps, and logs, the accuracy of the initial model and of each round's."""

    def __init__(self, app: App, kind: str) -> None:
        self.app = app
        self.kind = kind
        self.accuracies: list[float] = []

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """What Flower calls after each round."""
        accuracy = self.app.accuracy(arrays.to_numpy_ndarrays())
        self.accuracies.append(accuracy)
        logging.getLogger("quickstarts").info("%s, round %d: %.4f", self.kind, server_round, accuracy)
        return MetricRecord({"accuracy": accuracy})

    def result(self) -> dict[str, Any]:
        """The last accuracy, all of them, and the mean over the last fifth of the rounds, for what swings."""
        late = self.accuracies[-max(1, (len(self.accuracies) - 1) // 5) :]
        return {
            "accuracy": self.accuracies[-1],
            "late_mean": round(sum(late) / len(late), 4),
            "by_round": [round(each, 4) for each in self.accuracies],
        }


def run_plain(app: App, setting: Setting) -> dict[str, Any]:
    """Flower's strategy without protection."""
    strategy = setting.strategy(
        fraction_train=setting.cohort / setting.population,
        min_train_nodes=setting.cohort,
        min_available_nodes=setting.population,
    )
    curve = Curve(app, "plain")
    grid = InProcessGrid(app.client_app(), num_nodes=setting.population)
    strategy.start(grid, ArrayRecord(app.initial), num_rounds=setting.rounds, evaluate_fn=curve)
    return curve.result()


def run_private(app: App, setting: Setting) -> dict[str, Any]:
    """The same, through ``ShuffleMod`` and ``ShuffleStrategy``."""
    limits = ClientLimits(max_local_epsilon=setting.local_epsilon, max_rounds=setting.rounds)
    if setting.local_epsilon is None:
        limits = replace(limits, max_local_epsilon=math.inf, max_epsilon=1000.0, delta=setting.delta)
    mod = ShuffleMod(limits=limits)
    strategy = ShuffleStrategy(
        setting.strategy(),
        **setting.randomizer(app.dim),
        sampling=FixedSize(setting.cohort),
        population=setting.population,
        delta=setting.delta,
    )
    curve = Curve(app, "private")
    grid = InProcessGrid(app.client_app(mod=mod), num_nodes=setting.population)
    begun = time.process_time()
    strategy.start(grid, ArrayRecord(app.initial), num_rounds=setting.rounds, evaluate_fn=curve)
    spent = strategy.spending()
    return curve.result() | {
        "epsilon_observer": spent.observer.upper,
        "epsilon_server": spent.server.upper,
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


SETTINGS = {
    "numpy": [
        Setting(population=100, cohort=100, rounds=3, clipping_norm=1.0, local_epsilon=4.0),
        Setting(population=1000, cohort=1000, rounds=3, clipping_norm=1.0, local_epsilon=2.0),
        Setting(population=100, cohort=100, rounds=3, clipping_norm=1.0, epsilon=1.0),
        Setting(population=500, cohort=500, rounds=3, clipping_norm=1.0, epsilon=1.0),
    ],
    "sklearn": [
        Setting(population=100, cohort=100, rounds=25, clipping_norm=0.3, epsilon=4.0),
        Setting(population=300, cohort=300, rounds=25, clipping_norm=0.3, epsilon=4.0),
    ],
    "pytorch": [
        Setting(
            population=1000,
            cohort=1000,
            rounds=12,
            clipping_norm=0.5,
            epsilon=8.0,
            local_epochs=5,
            learning_rate=0.02,
        ),
    ],
}


def measure(name: str, setting: Setting, *, data_dir: Path | None) -> dict[str, Any]:
    """One row of the table: an app, plain and private."""
    if name == "numpy":
        app = numpy_app(rounds=setting.rounds)
    elif name == "sklearn":
        app = sklearn_app()
    else:
        assert data_dir is not None
        split, tests = load_mnist(data_dir)
        app = pytorch_app(split, tests, setting=setting)
    private = run_private(app, setting)
    return {
        "app": f"quickstart-{name}",
        "dim": app.dim,
        "population": setting.population,
        "cohort": setting.cohort,
        "rounds": setting.rounds,
        "clipping_norm": setting.clipping_norm,
        "randomizer": "vector-sum" if setting.epsilon else setting.randomizer(app.dim)["randomizer"],
        "local_epsilon": setting.local_epsilon,
        "delta": setting.delta,
        "server_momentum": setting.server_momentum,
        "local_epochs": setting.local_epochs if name == "pytorch" else None,
        "learning_rate": setting.learning_rate if name == "pytorch" else None,
        "private": private,
        "plain": run_plain(app, setting),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="MNIST in IDX files")
    parser.add_argument("--apps", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "pytorch" in options.apps and options.data_dir is None:
        parser.error("--data-dir is needed for quickstart-pytorch")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("quickstarts").setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in options.apps:
        rows = [measure(name, setting, data_dir=options.data_dir) for setting in SETTINGS[name]]
        kept = json.loads(options.results.read_text()) if options.results.exists() else {}
        options.results.write_text(json.dumps(kept | {name: rows}, indent=1) + "\n")
        for row in rows:
            print(json.dumps(row))


if __name__ == "__main__":
    main()
