"""Table 4.2 of the thesis: personalised federated learning on MNIST, 50 clients of three digits each.

Girgis (thesis, UCLA 2023), section 4.6: every client has images of three random classes, all take part in
every round, τ = 10 local steps, a network of two convolutional and three fully connected layers. Compared at
ε = 3.35, 13.16 and 27.30:

- ``adaped``: DP-AdaPeD. A client's own model θ never leaves it; the changes of the global model μ and ψ do;
- ``fedavg``: DP-FedAvg. One global model for all;
- ``local``: no communication. Every client trains θ on its own images, and ε is 0.

ε is met in two ways. ``certified``: a round's update is clipped once and goes through a Poisson binomial
sum, one of this package's own rounds, calibrated so that all rounds together cost at most ε. ``printed``:
each local step is clipped and gets Gaussian noise, as in the thesis, and ε is what its Theorem 4.5.1 claims,
which is no bound; the table says beside it what is certified of such a run. ``none``: no noise and no
clipping. ``alone``: nothing is sent, so ε is 0, and the global model stays at its random start: what
distillation does by itself.

    python examples/adaped_mnist.py --data-dir DIR        # 48 runs, some minutes of a core each
    python examples/adaped_mnist.py --data-dir DIR --device cuda --jobs 12        # minutes for all
    python examples/adaped_mnist.py --table               # the table of the results so far

All clients train at once, by ``torch.func.vmap``. Ctrl-C, or kill it, whenever you like: runs that are done
are in the results, and the others start anew. Seeds fix partition, initial weights and batches; the noise
that protects is always fresh.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from mnist_idx import load_mnist
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from tqdm import tqdm
from typing_extensions import override

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.accounting.published import thesis
from shuffle_plugins.optim import AdaPeD, ClientModels
from shuffle_plugins.protocols import PoissonBinomialSum

sys.path.append(str(Path(__file__).parent / "flower-adaped"))  # the app, whose network this is

from flower_adaped.task import network

CLIENTS, CLASSES, IMAGES_OF_CLASS, BATCH, STEPS = 50, 3, 400, 20, 10
DELTA = 1e-4
EPSILONS = (3.35, 13.16, 27.30)
SEEDS = (1, 2, 3)
RESULTS = Path(__file__).parent / "results" / "adaped_mnist.json"
PUBLISHED = {
    "adaped": {3.35: "93.32 ± 1.18", 13.16: "98.51 ± 0.90", 27.30: "99.01 ± 0.65"},
    "fedavg": {3.35: "11.73 ± 0.85", 13.16: "29.91 ± 1.28", 27.30: "55.79 ± 0.29"},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run.

    Attributes:
        method: ``adaped``, ``fedavg`` or ``local``.
        accounting: ``certified``, ``printed``, ``none`` or ``alone``.
        epsilon: target at δ = 1e-4; None without noise.
        seed: fixes everything but the noise.
        rounds: of 10 local steps each.
        personal_rate: η1; the learning rate of ``fedavg`` and ``local``.
        global_rate, dissimilarity_rate: η2, η3.
        clip: of a round's update (``certified``), or of a step's gradient, C1 (``printed``).
        dissimilarity: ψ at the start.
        dissimilarity_scale: s of :class:`AdaPeD`.
        dissimilarity_clip: C2.
    """

    method: str
    accounting: str
    epsilon: float | None
    seed: int
    rounds: int
    personal_rate: float = 0.1
    global_rate: float = 0.1
    dissimilarity_rate: float = 0.01
    clip: float = 0.1
    dissimilarity: float = 1.0
    dissimilarity_scale: float = 0.1
    dissimilarity_clip: float = 1.0

    @property
    def sends_nothing(self) -> bool:
        """Whether clients never communicate."""
        return self.method == "local" or self.accounting == "alone"

    @property
    def name(self) -> str:
        """By which it is found in the results."""
        return " ".join(
            f"{value:g}" if isinstance(value, float) else str(value) for value in asdict(self).values()
        )


LOCAL = Run(method="local", accounting="none", epsilon=None, seed=0, rounds=60, personal_rate=0.2)
ADAPED = replace(LOCAL, method="adaped", global_rate=0.03)
FEDAVG = replace(LOCAL, method="fedavg")
SETTINGS: tuple[Run, ...] = (
    LOCAL,
    *(replace(ADAPED, accounting="certified", epsilon=e, clip=0.03, global_rate=0.1) for e in EPSILONS),
    replace(ADAPED, accounting="alone"),
    ADAPED,
    FEDAVG,
    replace(ADAPED, accounting="printed", epsilon=3.35, clip=0.1, global_rate=0.01),
    *(replace(ADAPED, accounting="printed", epsilon=e, clip=0.1) for e in (13.16, 27.30)),
    *(
        replace(FEDAVG, personal_rate=0.1, accounting=how, epsilon=epsilon, clip=clip, rounds=rounds)
        for how, epsilon, clip, rounds in (
            ("certified", 3.35, 0.1, 20),
            ("certified", 13.16, 0.2, 60),
            ("certified", 27.30, 0.3, 60),
            ("printed", 3.35, 0.1, 20),
            ("printed", 13.16, 0.05, 60),
            ("printed", 27.30, 0.4, 60),
        )
    ),
)
"""What did best on seed 0, of what ``grid`` tried."""


predict = partial(functional_call, network("MNIST"))


@dataclass(frozen=True)
class Federation:
    """The clients' images, and the test images of each client's classes."""

    images: Tensor  # all training images, (60000, 784)
    labels: Tensor
    held: list[Tensor]  # each client's indices into them
    test_images: Tensor
    test_labels: Tensor
    tested: list[Tensor]  # each client's indices into those

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch of every client, (clients, BATCH, …), for each local step of a round."""
        for _ in range(STEPS):
            chosen = torch.stack(
                [mine[torch.randint(len(mine), (BATCH,), generator=generator)] for mine in self.held]
            ).to(self.images.device)
            yield self.images[chosen], self.labels[chosen]

    def accuracy(self, models: dict[str, Tensor], *, common: bool) -> float:
        """Mean over clients of the share of right answers on the test images of their own classes.

        Args:
            models: parameters, stacked by client unless ``common``.
            common: all clients have one model.
        """
        with torch.no_grad():
            if common:
                right = (predict(models, self.test_images).argmax(dim=1) == self.test_labels).float()
                return float(torch.stack([right[mine].mean() for mine in self.tested]).mean())
            shares = []
            for client, mine in enumerate(self.tested):
                own = {name: value[client] for name, value in models.items()}
                right = predict(own, self.test_images[mine]).argmax(dim=1) == self.test_labels[mine]
                shares.append(right.float().mean())
        return float(torch.stack(shares).mean())


@lru_cache(maxsize=1)
def mnist(directory: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return load_mnist(directory)


@lru_cache(maxsize=4)
def federation(directory: Path, *, seed: int, device: str) -> Federation:
    """Three random classes for each client; a class's images are shared out to its clients, 400 at most."""
    (images, labels), (test_images, test_labels) = mnist(directory)
    generator = torch.Generator().manual_seed(seed)
    classes = torch.stack([torch.randperm(10, generator=generator)[:CLASSES] for _ in range(CLIENTS)])
    held: list[list[Tensor]] = [[] for _ in range(CLIENTS)]
    for digit in range(10):
        owners = (classes == digit).any(dim=1).nonzero().flatten().tolist()
        places = (labels == digit).nonzero().flatten()
        places = places[torch.randperm(len(places), generator=generator)]
        each = min(IMAGES_OF_CLASS, len(places) // max(len(owners), 1))
        for owner, part in zip(owners, places.split(each), strict=False):
            held[owner].append(part)
    return Federation(
        images=images.flatten(1).to(device),
        labels=labels.to(device),
        held=[torch.cat(parts) for parts in held],
        test_images=test_images.flatten(1).to(device),
        test_labels=test_labels.to(device),
        tested=[torch.isin(test_labels, mine).nonzero().flatten().to(device) for mine in classes],
    )


def initial(seed: int, *, device: str) -> dict[str, Tensor]:
    """The network's parameters as PyTorch draws them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {name: value.detach().to(device) for name, value in network("MNIST").named_parameters()}


def stacked(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.expand(CLIENTS, *value.shape).clone() for name, value in parameters.items()}


def vectors(arrays: dict[str, Tensor]) -> Tensor:
    """Every client's arrays as one row, (clients, dim)."""
    return torch.cat([value.reshape(CLIENTS, -1) for value in arrays.values()], dim=1)


def moved(arrays: dict[str, Tensor], step: Tensor) -> dict[str, Tensor]:
    """Arrays that are the same for all clients, moved by a vector (dim,)."""
    parts = step.split([value[0].numel() for value in arrays.values()])
    return {
        name: value + part.to(value).view(value.shape[1:])
        for (name, value), part in zip(arrays.items(), parts, strict=True)
    }


def printed_noise(run: Run) -> float:
    """σ/C of the local steps at which the thesis's formula gives ε; the same for μ and for ψ."""
    assert run.epsilon is not None
    low, high = 1e-2, 1e6
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        claimed = thesis.printed_epsilon(
            delta=DELTA,
            rounds=run.rounds,
            cohort=CLIENTS,
            population=CLIENTS,
            global_noise=middle,
            dissimilarity_noise=middle if run.method == "adaped" else math.inf,
        )
        low, high = (middle, high) if claimed > run.epsilon else (low, middle)
    return high


class Training(ABC):
    """What the clients do in a round: subclasses keep their models, stacked by client."""

    def __init__(self, run: Run, *, device: str, noise: float) -> None:
        self.run, self.device, self.noise = run, device, noise

    @abstractmethod
    def shared(self) -> dict[str, Tensor]:
        """What is sent to the clients and comes back changed, stacked."""

    @abstractmethod
    def receive(self, arrays: dict[str, Tensor]) -> None:
        """The start of a round."""

    @abstractmethod
    def step(self, images: Tensor, labels: Tensor) -> None:
        """A local step of every client."""

    @abstractmethod
    def accuracies(self, data: Federation) -> dict[str, float]:
        """What the results say of the models as they are now."""

    def noisy(self, value: Tensor, deviation: float) -> Tensor:
        """With the printed algorithm's noise, from PyTorch's own generator, which protects nobody."""
        return value + deviation * torch.randn_like(value) if self.noise else value


class Personalised(Training):
    """AdaPeD: every client keeps a model of its own beside the global one."""

    def __init__(self, run: Run, *, device: str, noise: float) -> None:
        super().__init__(run, device=device, noise=noise)
        self.method = AdaPeD(
            predict=predict,
            personal_rate=run.personal_rate,
            global_rate=run.global_rate,
            dissimilarity_rate=run.dissimilarity_rate,
            dissimilarity_scale=run.dissimilarity_scale,
            dissimilarity_clip=run.dissimilarity_clip,
            global_clip=run.clip if noise else math.inf,
        )
        parameters = stacked(initial(run.seed, device=device))
        self.models = ClientModels(
            personal_model=parameters,
            global_model=parameters,
            dissimilarity=torch.full((CLIENTS,), run.dissimilarity, device=device),
        )
        self.whole_step = vmap(self.method.step)
        self.personal_step = vmap(self.method.personal_step)
        self.global_step = vmap(self.method.global_step)
        self.dissimilarity_step = vmap(self.method.dissimilarity_step)

    @override
    def shared(self) -> dict[str, Tensor]:
        return self.method.arrays(self.models)

    @override
    def receive(self, arrays: dict[str, Tensor]) -> None:
        self.models = self.method.received(arrays, personal_model=self.models.personal_model)

    @override
    def step(self, images: Tensor, labels: Tensor) -> None:
        if not self.noise:
            self.models = self.whole_step(self.models, images, labels)
            return
        models = self.global_step(self.personal_step(self.models, images, labels), images)
        deviation = self.noise * self.run.clip * self.run.global_rate
        models = models._replace(
            global_model={name: self.noisy(value, deviation) for name, value in models.global_model.items()}
        )
        models = self.dissimilarity_step(models, images)
        deviation = self.noise * self.run.dissimilarity_clip * self.run.dissimilarity_rate
        psi = self.method.projected(self.noisy(models.dissimilarity, deviation))
        self.models = models._replace(dissimilarity=psi)

    @override
    def accuracies(self, data: Federation) -> dict[str, float]:
        return {
            "accuracy": data.accuracy(self.models.personal_model, common=False),
            "global_accuracy": data.accuracy(
                {name: value[0] for name, value in self.models.global_model.items()}, common=True
            ),
            "final_dissimilarity": float(self.models.dissimilarity.mean()),
        }


class Averaged(Training):
    """FedAvg; without communication, local training."""

    def __init__(self, run: Run, *, device: str, noise: float) -> None:
        super().__init__(run, device=device, noise=noise)
        self.models = stacked(initial(run.seed, device=device))
        self.gradients = vmap(
            grad(lambda own, images, labels: nn.functional.cross_entropy(predict(own, images), labels))
        )

    @override
    def shared(self) -> dict[str, Tensor]:
        return self.models

    @override
    def receive(self, arrays: dict[str, Tensor]) -> None:
        self.models = arrays

    @override
    def step(self, images: Tensor, labels: Tensor) -> None:
        gradients = self.gradients(self.models, images, labels)
        rate = self.run.personal_rate
        if self.noise:
            cut = (self.run.clip / vectors(gradients).norm(dim=1)).clamp(max=1.0)
            gradients = {
                name: self.noisy(cut.view(-1, *[1] * (value.dim() - 1)) * value, self.noise * self.run.clip)
                for name, value in gradients.items()
            }
        self.models = {name: value - rate * gradients[name] for name, value in self.models.items()}

    @override
    def accuracies(self, data: Federation) -> dict[str, float]:
        if self.run.method == "local":
            return {"accuracy": data.accuracy(self.models, common=False)}
        return {
            "accuracy": data.accuracy({name: value[0] for name, value in self.models.items()}, common=True)
        }


def train(run: Run, *, directory: Path, device: str, show: bool, surrogate: bool) -> dict[str, Any]:
    """Carry a run out; returns what goes into the results.

    ``surrogate`` draws Gaussian noise of the sum's deviation in place of the sum itself: for tuning.
    """
    began = time.perf_counter()
    facts: dict[str, Any] = {"epsilon_certified": 0.0 if run.sends_nothing else None}
    noise, protocol = 0.0, None
    if run.accounting == "printed":
        noise = printed_noise(run)
        psi = noise if run.method == "adaped" else math.inf
        facts["noise_multiplier"] = noise
        facts["epsilon_certified"] = thesis.noisy_steps_epsilon(
            delta=DELTA, steps=run.rounds * STEPS, global_noise=noise, dissimilarity_noise=psi
        )
    kind = Personalised if run.method == "adaped" else Averaged
    training = kind(run, device=device, noise=noise)
    if run.accounting == "certified":
        assert run.epsilon is not None
        protocol = PoissonBinomialSum.calibrated(
            dim=vectors(training.shared()).shape[1],
            radius=run.clip,
            cohort=CLIENTS,
            population=CLIENTS,
            epsilon=run.epsilon,
            delta=DELTA,
            num_steps=run.rounds,
        )
        accountant = ShuffleAccountant()
        accountant.step(protocol.round(population=CLIENTS, cohort=CLIENTS), num_steps=run.rounds)
        facts["epsilon_certified"] = accountant.epsilon(DELTA, lower=False).upper
        facts["bits_per_coordinate"] = protocol.bits
        facts["noise_multiplier"] = math.sqrt(protocol.worst_variance / protocol.dim) / run.clip
    data = federation(directory, seed=run.seed, device=device)
    generator = torch.Generator().manual_seed(run.seed)
    curve = []
    for number in tqdm(
        range(1, run.rounds + 1), desc=run.name, unit="round", disable=not show, mininterval=2
    ):
        before = training.shared()
        for images, labels in data.batches(generator):
            training.step(images, labels)
        if run.accounting == "alone":
            training.receive(before)
        elif not run.sends_nothing:
            updates = vectors(training.shared()) - vectors(before)
            if protocol is None:
                change = updates.mean(dim=0)
            elif surrogate:
                cut = (run.clip / updates.norm(dim=1, keepdim=True)).clamp(max=1.0)
                total = (updates * cut).sum(dim=0)
                noises = torch.randn_like(total) * (protocol.worst_variance / protocol.dim) ** 0.5
                change = (total + noises) / CLIENTS
            else:
                change = protocol.randomize_sum(updates.cpu()) / CLIENTS
            training.receive(moved(before, change))
        if number % 30 == 0 or number == run.rounds:
            curve.append({"round": number, **training.accuracies(data)})
    return {
        **asdict(run),
        "delta": DELTA,
        **facts,
        **{name: value for name, value in curve[-1].items() if name != "round"},
        "curve": curve,
        "seconds": round(time.perf_counter() - began, 1),
    }


def grid() -> list[Run]:
    """What was tried on seed 0 before SETTINGS were fixed."""
    base = Run(method="local", accounting="none", epsilon=None, seed=0, rounds=60, personal_rate=0.2)
    runs = [replace(base, personal_rate=rate) for rate in (0.1, 0.2, 0.4)]
    for rate in (0.1, 0.2):
        runs.append(replace(base, method="fedavg", personal_rate=rate))
        adaped = replace(base, method="adaped", personal_rate=rate)
        runs += [replace(adaped, global_rate=rate) for rate in (0.03, 0.1, 0.3)]
    for epsilon in EPSILONS:
        certified = replace(base, epsilon=epsilon, accounting="certified")
        runs += [
            replace(certified, method="adaped", clip=clip, dissimilarity=psi)
            for clip in (0.03, 0.1, 0.3)
            for psi in (1.0, 5.0)
        ]
        runs += [
            replace(certified, method="fedavg", clip=clip, personal_rate=rate)
            for clip in (0.1, 0.2, 0.3, 0.5)
            for rate in (0.1, 0.2)
        ]
        runs += [
            replace(certified, method="fedavg", clip=clip, rounds=20, personal_rate=rate)
            for clip in (0.1, 0.5)
            for rate in (0.1, 0.2)
        ]
        printed = replace(base, epsilon=epsilon, accounting="printed")
        runs += [
            replace(printed, method="adaped", clip=clip, global_rate=rate)
            for clip in (0.1, 0.3)
            for rate in (0.01, 0.03)
        ]
        runs += [
            replace(printed, method="fedavg", clip=clip, personal_rate=0.1) for clip in (0.05, 0.1, 0.2, 0.4)
        ]
        runs.append(replace(printed, method="fedavg", clip=0.1, personal_rate=0.1, rounds=20))
    random.Random(0).shuffle(runs)
    return runs


def measured() -> list[Run]:
    """The runs of the table: the settings found, on seeds that were not used to find them."""
    runs = [replace(run, seed=seed) for seed in SEEDS for run in SETTINGS]
    last = ("printed", "none")
    return sorted(runs, key=lambda run: run.accounting in last and run.method != "local")


def carried_out(run: Run, options: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    torch.set_num_threads(options.threads)
    show = options.jobs == 1
    return run, train(
        run, directory=options.data_dir, device=options.device, show=show, surrogate=options.surrogate
    )


def results_of(runs: list[Run], options: argparse.Namespace) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Each run's facts, as they come."""
    if options.jobs == 1:
        for run in runs:
            yield carried_out(run, options)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for future in as_completed([pool.submit(carried_out, run, options) for run in runs]):
            yield future.result()


def table(results: dict[str, Any]) -> str:
    """Test accuracies by method and ε as a Markdown table, beside what the thesis printed.

    Mean ± standard deviation over those of ``SEEDS`` that have been run. Where none has, the best of the runs
    that the settings were chosen by, on seed 0, with a dagger.
    """

    def runs(*kind: str | float | None, rounds: int | None = None) -> tuple[list[dict[str, Any]], bool]:
        """The runs to show of a method, accounting and ε; whether they are of ``SEEDS``."""
        found: list[list[dict[str, Any]]] = [
            [
                run
                for run in part.values()
                if (run["method"], run["accounting"], run["epsilon"]) == kind
                and rounds in (None, run["rounds"])
            ]
            for part in (results["runs"], results["tuning"]["runs"])
        ]
        if found[0]:
            return found[0], True
        return sorted(found[1], key=lambda run: -run["accuracy"])[:1], False

    def cell(*kind: str | float | None, rounds: int | None = None) -> str:
        shown, final = runs(*kind, rounds=rounds)
        shares = [100 * run["accuracy"] for run in shown]
        if final:
            return f"{mean(shares):.2f} ± {stdev(shares):.2f}" if len(shares) > 1 else f"{shares[0]:.2f}"
        return f"{shares[0]:.2f} †" if shares else "—"

    def certified(method: str, epsilon: float) -> str:
        shown, _ = runs(method, "printed", epsilon)
        return f"≤ {math.ceil(max(run['epsilon_certified'] for run in shown)):,}" if shown else "—"

    def of_global_model(epsilon: float) -> str:
        shown, _ = runs("adaped", "certified", epsilon)
        return f"{100 * mean(run['global_accuracy'] for run in shown):.1f}" if shown else "—"

    every = len(EPSILONS)
    rows = [
        ["test accuracy, %", *[f"ε = {epsilon:.2f}" for epsilon in EPSILONS]],
        ["---"] * (every + 1),
        [
            "**local training**, 600 steps, nothing sent (ε = 0)",
            *[cell("local", "none", None, rounds=60)] * every,
        ],
        ["local training, 1,200 steps", *[cell("local", "none", None, rounds=120)] * every],
        ["AdaPeD with a random μ, nothing sent (ε = 0)", *[cell("adaped", "alone", None)] * every],
    ]
    for method, title in (("adaped", "DP-AdaPeD"), ("fedavg", "DP-FedAvg")):
        rows.append(
            [f"**{title}, certified ε**", *[cell(method, "certified", epsilon) for epsilon in EPSILONS]]
        )
        if method == "adaped":
            rows.append(["accuracy of its global model μ", *map(of_global_model, EPSILONS)])
        rows += [
            [f"{title}, ε by the printed formula", *[cell(method, "printed", e) for e in EPSILONS]],
            ["what is certified of those runs: ε", *[certified(method, e) for e in EPSILONS]],
            [f"{title}, published", *[PUBLISHED[method][epsilon] for epsilon in EPSILONS]],
            [f"{title}, no noise and no clipping (ε = ∞)", *[cell(method, "none", None)] * every],
        ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows if set(row[1:]) != {"—"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="MNIST in IDX files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, each a process (1)")
    parser.add_argument("--threads", type=int, default=1, help="of a run (1)")
    parser.add_argument("--tune", action="store_true", help="the grid on seed 0 in place of the table's runs")
    parser.add_argument(
        "--surrogate",
        action="store_true",
        help="Gaussian noise of the sum's deviation in its place: not private",
    )
    parser.add_argument("--table", action="store_true", help="print the table of the results so far, and end")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: dict[str, Any] = {"tuning": {"runs": {}}, "runs": {}}
    if options.results.exists():
        results = json.loads(options.results.read_text())
    if options.table:
        print(table(results))
        return
    if options.data_dir is None:
        parser.error("--data-dir is needed to train")
    wanted, done = (grid(), results["tuning"]["runs"]) if options.tune else (measured(), results["runs"])
    missing = [run for run in wanted if run.name not in done]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(
        total=len(wanted), initial=len(wanted) - len(missing), unit="run", disable=options.jobs == 1
    ) as bar:
        for run, facts in results_of(missing, options):
            done[run.name] = facts
            options.results.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            bar.update()
            tqdm.write(f"{run.name}: {facts['accuracy']:.2%}")


if __name__ == "__main__":
    main()
