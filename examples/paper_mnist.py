"""The MNIST experiments of two sources, in full: Figures 5(a), 5(b) and 4.2, and the same without privacy.

Figures 5(a) and 5(b) are of Girgis, Data, Diggavi, "Rényi Differential Privacy of the Subsampled Shuffle
Model" (NeurIPS 2021), Figure 4.2 is of Girgis's thesis (2023). 60,000 clients hold one image each; every
round draws a cohort of them without replacement; every gradient is clipped and randomised before it leaves
its client.

    python examples/paper_mnist.py fig5a --data-dir DIR        # five seeds, one after the other
    python examples/paper_mnist.py fig5b --data-dir DIR --device cuda --parallel 4
    python examples/paper_mnist.py fig5a --data-dir DIR --local-epsilon 3 --rates 0.3,0.1@50 --results my.json

Settings with a name: fig5a (l-infinity clipping, one coordinate of a gradient, ε0 = 1.5), fig5b (l2 clipping,
PrivUnit, ε0 = 2), fig4.2 (as fig5a with ε0 = 2, for 80 epochs), non-private (neither clipping nor noise). An
option replaces that number of the setting. Press Ctrl-C whenever you like: the same command goes on from the
last epoch of every seed.

A seed gives the initial weights alone. Cohorts and reports are drawn from fresh cryptographic randomness, so
that ε is that of a real run; two runs of one seed therefore differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from mnist_idx import load_mnist, paper_network
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.accounting.published import published_bound
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry

RESULTS = Path(__file__).parent / "results"
ACCOUNTANT = "subsampled_shuffle_pld"
# Bounds under which the sources report their ε, by the name that the results give them.
READINGS = {
    "published": "subsampled shuffle RDP, published",
    "clones_numerical": "clones, numerical",
    "clones_closed": "clones, closed form",
}
_PHYSICAL_BATCH = {"cpu": 500, "cuda": 10_000}  # 500 gradients of 13,706 numbers are 27 MB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained, and how.

    Attributes:
        mechanism: randomises each gradient; its norm is the one that is clipped. "none" for training without
            privacy: then ``local_epsilon``, ``clip`` and ``delta`` have no meaning.
        local_epsilon: ε0 of one report.
        clip: radius of the mechanism's norm ball.
        cohort: k, clients in a round; an epoch has n // k rounds.
        epochs: how many.
        rates: pairs of a learning rate and the epoch from which on it is used, the first of them 1.
        delta: δ of the whole run.
        population: n, how many of the 60,000 images take part.
    """

    mechanism: str
    local_epsilon: float
    clip: float
    cohort: int
    epochs: int
    rates: tuple[tuple[float, int], ...]
    delta: float = 1e-5
    population: int = 60_000

    @property
    def private(self) -> bool:
        """Whether gradients are randomised."""
        return self.mechanism != "none"

    @property
    def steps_per_epoch(self) -> int:
        """Rounds in an epoch."""
        return self.population // self.cohort

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 1."""
        return [value for value, first in self.rates if first <= epoch][-1]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A result that a source reports.

    Attributes:
        epsilon: its ε; None without privacy.
        accuracy: mean over the source's runs.
        deviation: standard deviation over them; None where it is not said.
        readings: keys of ``READINGS`` by which that ε may have been computed, the likeliest first.
    """

    epsilon: float | None
    accuracy: float
    deviation: float | None
    readings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a source reports of a setting."""

    source: str
    points: tuple[Point, ...]


_COORDINATE = Setting(
    mechanism="linf-coordinate",
    local_epsilon=1.5,
    clip=1 / 100,
    cohort=10_000,
    epochs=200,
    rates=((0.3, 1), (0.18, 71)),
)
_EARLIER = ("clones_numerical",)
_ANY = ("clones_closed", "published", "clones_numerical")
# By name: the setting, what is published of it, and how many seeds are trained unless others are asked for.
PRESETS: dict[str, tuple[Setting, Published, int]] = {
    "fig5a": (
        _COORDINATE,
        Published(
            source="Girgis, Data, Diggavi 2021, Fig. 5(a), 10 runs",
            points=(
                Point(epsilon=1.4, accuracy=0.80, deviation=0.018, readings=("published",)),
                Point(epsilon=2.91, accuracy=0.90, deviation=0.005, readings=("published",)),
                Point(epsilon=1.4, accuracy=0.707, deviation=0.021, readings=_EARLIER),
                Point(epsilon=4.82, accuracy=0.90, deviation=0.005, readings=_EARLIER),
            ),
        ),
        5,
    ),
    "fig5b": (
        Setting(
            mechanism="privunit",
            local_epsilon=2.0,
            clip=0.005,
            cohort=2_000,
            epochs=200,
            rates=((12.0, 1), (4.0, 31), (3.5, 61)),
        ),
        Published(
            source="Girgis, Data, Diggavi 2021, Fig. 5(b), 4 runs",
            points=(
                Point(epsilon=3.0, accuracy=0.8115, deviation=0.007, readings=("published",)),
                Point(epsilon=5.8, accuracy=0.897, deviation=0.005, readings=("published",)),
                Point(epsilon=3.0, accuracy=0.7646, deviation=0.019, readings=_EARLIER),
                Point(epsilon=18.3, accuracy=0.897, deviation=0.005, readings=_EARLIER),
            ),
        ),
        4,
    ),
    "fig4.2": (
        replace(_COORDINATE, local_epsilon=2.0, epochs=80),
        Published(
            source="Girgis 2023, Fig. 4.2, 10 runs",
            points=(
                Point(epsilon=5.0, accuracy=0.767, deviation=0.02, readings=_ANY),
                Point(epsilon=10.0, accuracy=0.879, deviation=0.01, readings=_ANY),
            ),
        ),
        10,
    ),
    "non-private": (
        replace(_COORDINATE, mechanism="none", cohort=250, epochs=30, rates=((0.3, 1), (0.03, 21))),
        Published(
            source="Girgis, Data, Diggavi 2021, section 4",
            points=(Point(epsilon=None, accuracy=0.99, deviation=None, readings=()),),
        ),
        1,
    ),
}


class TensorPairs(Dataset[Any]):
    """Images and labels that stay on the device. A batch is two gathers, where a list of records is 2·k."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._tensors = (images, labels)

    def __len__(self) -> int:
        return len(self._tensors[1])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(part[index] for part in self._tensors)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        """A whole batch: torch's loaders call this where a data set has it."""
        chosen = torch.tensor(indices, dtype=torch.int64, device=self._tensors[1].device)
        return tuple(part.index_select(0, chosen) for part in self._tensors)


def as_it_is(batch: Any) -> Any:
    """The batch that ``TensorPairs`` has made already."""
    return batch


@lru_cache(maxsize=1)
def _data(directory: Path, device: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """MNIST on a device, read once for all seeds of a process."""
    train, test = load_mnist(directory)
    return tuple(part.to(device) for part in train), tuple(part.to(device) for part in test)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One seed's training, as a process is told of it."""

    setting: Setting
    seed: int
    data_dir: Path
    device: str
    physical_batch: int
    threads: int
    checkpoint: Path
    position: int = 0


def train(task: Task) -> None:
    """Train one seed to its last epoch, from its checkpoint if there is one, which then holds its curve.

    Raises:
        ValueError: if the checkpoint is one of another setting.
    """
    torch.set_num_threads(task.threads)
    setting, device = task.setting, task.device
    (images, labels), test = _data(task.data_dir, device)
    network = initial_network(task.seed, device)
    optimizer = torch.optim.SGD(network.parameters(), lr=setting.rate(1))
    data = TensorPairs(images[: setting.population], labels[: setting.population])
    run = (_PrivateRun if setting.private else _PlainRun)(task, network, optimizer, data)
    saved: dict[str, Any] = run.load() if task.checkpoint.exists() else {"curve": [], "seconds": 0.0}
    curve, seconds = saved["curve"], saved["seconds"]
    if saved.get("setting", _saved(setting)) != _saved(setting):
        raise ValueError(
            f"{task.checkpoint} is of another setting ({saved['setting']}): give another folder by "
            "--checkpoints, or remove the file"
        )
    criterion = nn.CrossEntropyLoss()
    with tqdm(
        total=setting.epochs,
        initial=len(curve),
        unit="epoch",
        desc=f"seed {task.seed}",
        position=task.position,
    ) as progress:
        for epoch in range(len(curve) + 1, setting.epochs + 1):
            started = time.perf_counter()
            for group in run.optimizer.param_groups:
                group["lr"] = setting.rate(epoch)
            run.model.train()
            for x, y in run.batches():
                run.optimizer.zero_grad(set_to_none=True)
                criterion(run.model(x), y).backward()
                run.optimizer.step()
            curve.append(accuracy(run.model, test))
            seconds += time.perf_counter() - started
            run.save(
                {"curve": curve, "seconds": seconds, "setting": _saved(setting), "device": _name(device)}
            )
            progress.update()
            progress.set_postfix(accuracy=f"{curve[-1]:.4f}")
    run.check(steps=len(curve) * setting.steps_per_epoch)


def initial_network(seed: int, device: str) -> nn.Sequential:
    """The network with a seed's weights.

    With channels last, pooling on a CPU takes a tenth of the time, and forward and backward three quarters.
    The inputs of convolutions must stay contiguous: Opacus 1.6 computes wrong per-sample gradients, without
    an error, for a convolution whose input has its channels last.
    """
    torch.manual_seed(seed)
    network = paper_network()
    if device == "cpu":
        network = network.to(memory_format=torch.channels_last)
        for layer in network:
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
    return network.to(device)


def _saved(setting: Setting) -> dict[str, Any]:
    """What a checkpoint must agree with: all but the length of the run, which may be extended."""
    return {key: value for key, value in asdict(setting).items() if key != "epochs"}


class _PrivateRun:
    """A run through Opacus's engine, optimizer and loader."""

    def __init__(
        self, task: Task, network: nn.Module, optimizer: torch.optim.Optimizer, data: TensorPairs
    ) -> None:
        setting = self._setting = task.setting
        self._path, self._device, self._physical_batch = task.checkpoint, task.device, task.physical_batch
        self._engine = PrivacyEngine(accountant=ACCOUNTANT)
        self.model, self.optimizer, self._loader = self._engine.make_private(
            module=network,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=setting.cohort, collate_fn=as_it_is),
            randomizer=setting.mechanism,
            local_epsilon=setting.local_epsilon,
            max_grad_norm=setting.clip,
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch's rounds, split into physical batches."""
        with BatchMemoryManager(
            data_loader=self._loader, max_physical_batch_size=self._physical_batch, optimizer=self.optimizer
        ) as batches:
            yield from batches

    def load(self) -> dict[str, Any]:
        return self._engine.load_checkpoint(
            path=self._path,
            module=self.model,
            optimizer=self.optimizer,
            torch_load_kwargs={"map_location": self._device},
        )

    def save(self, about: dict[str, Any]) -> None:
        with _replacing(self._path) as path:
            self._engine.save_checkpoint(
                path=path, module=self.model, optimizer=self.optimizer, checkpoint_dict=about
            )

    def check(self, *, steps: int) -> None:
        """Compare the engine's ε with that of the accountant behind it, asked by itself.

        Raises:
            AssertionError: if they differ.
        """
        delta, parameters = self._setting.delta, self.optimizer.num_parameters
        alone = account(self._setting, steps=steps, parameters=parameters).epsilon(delta)
        if self._engine.get_epsilon_interval(delta) != alone:
            raise AssertionError("the engine's ε is not the core accountant's for the same rounds")


class _PlainRun:
    """A run of plain SGD over shuffled batches."""

    def __init__(
        self, task: Task, network: nn.Module, optimizer: torch.optim.Optimizer, data: TensorPairs
    ) -> None:
        self.model, self.optimizer, self._data = network, optimizer, data
        self._path, self._device, self._cohort = task.checkpoint, task.device, task.setting.cohort

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch over all images, in a new order."""
        return iter(
            DataLoader(self._data, batch_size=self._cohort, shuffle=True, drop_last=True, collate_fn=as_it_is)
        )

    def load(self) -> dict[str, Any]:
        saved: dict[str, Any] = torch.load(self._path, map_location=self._device)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved

    def save(self, about: dict[str, Any]) -> None:
        with _replacing(self._path) as path:
            torch.save(
                {**about, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path
            )

    def check(self, *, steps: int) -> None:
        """Nothing is accounted where nothing is private."""


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place at the end, so that a killed run leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    yield fresh
    fresh.replace(path)


def _name(device: str) -> str:
    return "CPU" if device == "cpu" else torch.cuda.get_device_name(device)


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """Share of the test images that the model gets right, rounded to their number."""
    images, labels = test
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(dim=1) == y).sum())
            for x, y in zip(images.split(2000), labels.split(2000), strict=True)
        )
    return right / len(labels)


def account(setting: Setting, *, steps: int, parameters: int) -> ShuffleAccountant:
    """The core accountant after so many rounds of a setting's mechanism."""
    mechanism = registry.get(
        setting.mechanism, local_epsilon=setting.local_epsilon, dim=parameters, radius=setting.clip
    )
    accountant = ShuffleAccountant()
    accountant.step(mechanism.round(population=setting.population, cohort=setting.cohort), num_steps=steps)
    return accountant


def train_all(tasks: list[Task], *, parallel: int, after_a_while: Callable[[], None]) -> None:
    """Train every task, so many at a time, each in a process of its own if there is more than one at a time.

    Raises:
        RuntimeError: if a process failed; its own error is on the terminal.
    """
    if parallel == 1:
        for task in tasks:
            train(task)
            after_a_while()
        return
    spawn = multiprocessing.get_context("spawn")
    waiting, running = list(reversed(tasks)), list[tuple[Task, Any]]()
    while waiting or running:
        while waiting and len(running) < parallel:
            taken = {task.position for task, _ in running}
            task = replace(waiting.pop(), position=min(set(range(parallel)) - taken))
            process = spawn.Process(target=train, args=(task,), daemon=True)
            process.start()
            running.append((task, process))
        multiprocessing.connection.wait([process.sentinel for _, process in running], timeout=10)
        for task, process in [one for one in running if one[1].exitcode is not None]:
            if process.exitcode != 0:
                raise RuntimeError(f"training of seed {task.seed} failed (exit code {process.exitcode})")
            running.remove((task, process))
        after_a_while()


def gather(path: Path, *, setting: Setting, published: Published | None, tasks: list[Task]) -> None:
    """Write the curves that the checkpoints hold into the results, beside those of other seeds in there.

    Raises:
        ValueError: if the results are of another setting.
    """
    about = {"settings": describe(setting), "published": published and asdict(published)}
    runs = {}
    if path.exists():
        earlier = json.loads(path.read_text())
        if earlier["settings"] != json.loads(json.dumps(about["settings"])):
            raise ValueError(f"{path} holds another setting's results: give another --results")
        runs = {run["seed"]: run for run in earlier["runs"]}
    for task in tasks:
        if task.checkpoint.exists():
            saved = torch.load(task.checkpoint, map_location="cpu", weights_only=False)
            runs[task.seed] = {
                "seed": task.seed,
                "device": saved["device"],
                "training_seconds": round(saved["seconds"]),
                "accuracy": saved["curve"],
            }
    save(path, {**about, "runs": [runs[seed] for seed in sorted(runs)]})


def describe(setting: Setting) -> dict[str, Any]:
    """A setting in the results' words."""
    about: dict[str, Any] = {
        "population": setting.population,
        "cohort": setting.cohort,
        "mechanism": setting.mechanism,
        "parameters": sum(p.numel() for p in paper_network().parameters()),
        "learning_rates": setting.rates,
    }
    if setting.private:
        about |= {
            "local_epsilon": setting.local_epsilon,
            "clip": setting.clip,
            "norm": str(registry.get(setting.mechanism, local_epsilon=1.0, dim=2).norm),
            "delta": setting.delta,
            "neighbouring_relation": "replace-one",
        }
    return about


def save(path: Path, results: dict[str, Any]) -> None:
    """Write the JSON of a preset: its setting, its runs, and each published point beside ours."""
    with _replacing(path) as fresh:
        fresh.write_text(json.dumps(results, indent=1) + "\n")


def report(path: Path, *, setting: Setting, published: Published | None) -> None:
    """Add to the curves in the results their mean, its spread, every ε and what is published; draw them."""
    results = json.loads(path.read_text())
    runs = results["runs"]
    epochs = min(len(run["accuracy"]) for run in runs)
    curve = [
        {"epoch": epoch, "steps": epoch * setting.steps_per_epoch, **_spread(runs, epoch)}
        for epoch in range(1, epochs + 1)
    ]
    if setting.private:
        for entry in tqdm(curve, desc="accounting"):
            entry |= _epsilons(setting, steps=entry["steps"], parameters=results["settings"]["parameters"])
    beside = [_beside(point, curve) for point in (published.points if published else ())]
    save(path, {**results, "curve": curve, "beside_the_source": beside})
    for entry in beside:
        print(_line(entry))
    if setting.private:
        draw(path.with_suffix(".png"), results | {"curve": curve}, published=published)


def _spread(runs: list[dict[str, Any]], epoch: int) -> dict[str, float | None]:
    reached = [run["accuracy"][epoch - 1] for run in runs]
    deviation = round(statistics.stdev(reached), 5) if len(reached) > 1 else None
    return {"accuracy": round(statistics.fmean(reached), 6), "deviation": deviation}


def _epsilons(setting: Setting, *, steps: int, parameters: int) -> dict[str, float | None]:
    """ε of so many rounds: the certified interval, and by every reading; None where its theorem is silent."""
    interval = account(setting, steps=steps, parameters=parameters).epsilon(setting.delta)
    found: dict[str, float | None] = {"epsilon_lower": interval.lower, "epsilon_upper": interval.upper}
    for reading, name in READINGS.items():
        try:
            found[f"epsilon_{reading}"] = published_bound(name).epsilon(
                local_epsilon=setting.local_epsilon,
                population=setting.population,
                cohort=setting.cohort,
                num_steps=steps,
                delta=setting.delta,
            )
        except ValueError:
            found[f"epsilon_{reading}"] = None
    return found


def _beside(point: Point, curve: list[dict[str, Any]]) -> dict[str, Any]:
    """The last epoch within the source's ε, by each reading of that ε; without privacy, the last epoch."""
    there = {"epsilon": point.epsilon, "accuracy": point.accuracy, "deviation": point.deviation}
    if point.epsilon is None:
        return {"published": there, "ours": {"last epoch": curve[-1]}}
    ours: dict[str, Any] = {}
    for reading in point.readings:
        key = f"epsilon_{reading}"
        within = [entry for entry in curve if entry[key] is not None and entry[key] <= point.epsilon]
        ours[reading] = within[-1] if within else None
    return {"published": there, "ours": ours}


def _line(entry: dict[str, Any]) -> str:
    """One published point beside ours, in words."""

    def percent(point: dict[str, Any]) -> str:
        spread = "" if point["deviation"] is None else f" ± {100 * point['deviation']:.1f}"
        return f"{100 * point['accuracy']:.1f}{spread} %"

    epsilon = entry["published"]["epsilon"]
    told = f"published {percent(entry['published'])}" + (f" at ε = {epsilon:g}" if epsilon else "")
    for reading, ours in entry["ours"].items():
        certified = f", certified ε {rounded(ours['epsilon_upper'], up=True)}" if ours and epsilon else ""
        found = f"{percent(ours)} at epoch {ours['epoch']}{certified}" if ours else "no epoch"
        told += f"; {reading}: {found}"
    return told


def draw(path: Path, results: dict[str, Any], *, published: Published | None) -> None:
    """Accuracy against ε, certified and by the readings that the source's points use."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = {"published": "tab:blue", "clones_numerical": "tab:green", "clones_closed": "tab:purple"}
    names = {
        "published": "by Theorem 1 of Girgis et al. 2021",
        "clones_numerical": "by the clones, numerical, and KOV",
        "clones_closed": "by the clones, closed form, and KOV",
    }
    points = published.points if published else ()
    readings = [reading for reading in READINGS if any(reading in point.readings for point in points)]
    curve, runs = results["curve"], len(results["runs"])
    figure, axes = plt.subplots(figsize=(4.5, 4.8), layout="constrained")
    band = [entry["deviation"] or 0.0 for entry in curve]
    lines = [("upper", "tab:orange", f"{runs} seeds, certified ε")]
    lines += [(reading, colours[reading], f"{runs} seeds, ε {names[reading]}") for reading in readings]
    for key, colour, label in lines:
        known = [
            (entry[f"epsilon_{key}"], entry["accuracy"], spread)
            for entry, spread in zip(curve, band, strict=True)
            if entry[f"epsilon_{key}"]
        ]
        if not known:
            continue
        x, mean, spread = (list(column) for column in zip(*known, strict=True))
        axes.plot(x, mean, color=colour, label=label)
        low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    lower = [entry["epsilon_lower"] for entry in curve]
    axes.plot(
        lower, [e["accuracy"] for e in curve], color="tab:orange", linestyle=":", label="certified lower ε"
    )
    for point in points:
        colour = "black" if len(point.readings) > 1 else colours[point.readings[0]]
        axes.errorbar(
            point.epsilon, point.accuracy, point.deviation, fmt="o", color=colour, capsize=3, zorder=3
        )
    if published:
        axes.errorbar([], [], [], fmt="ko", capsize=3, label=published.source)
    axes.set(
        xscale="log",
        xlabel=f"ε at δ = {results['settings']['delta']:g} (replace-one)",
        ylabel="test accuracy, mean ± deviation",
        ylim=(0, 1),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def rates(text: str) -> tuple[tuple[float, int], ...]:
    """Learning rates from a text such as 0.3,0.18@71: 0.3 at first, and 0.18 from epoch 71 on."""
    parts = (part.partition("@") for part in text.split(","))
    found = tuple((float(value), int(first or 1)) for value, _, first in parts)
    if found[0][1] != 1:
        raise argparse.ArgumentTypeError(f"the first rate must hold from epoch 1 on: {text!r}")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.data_dir is None and not options.report_only:
        parser.error("training needs --data-dir, the folder of MNIST's IDX files")
    if options.parallel < 1:
        parser.error(f"--parallel must be at least 1, got {options.parallel}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(
            "this torch sees no CUDA device: leave --device out, or install a build of torch with CUDA"
        )
    preset, published, seeds = PRESETS[options.preset]
    changes = {
        field.name: getattr(options, field.name)
        for field in fields(Setting)
        if getattr(options, field.name, None) is not None
    }
    setting = replace(preset, **changes)
    changed = setting != preset
    if changed and options.results is None:
        parser.error("another setting than the published one needs --results FILE of its own")
    published = None if changed else published
    results = options.results or RESULTS / f"paper_mnist_{options.preset}.json"
    folder = options.checkpoints or Path("outputs") / "paper_mnist" / results.stem
    device = options.device
    tasks = [
        Task(
            setting=setting,
            seed=seed,
            data_dir=options.data_dir,
            device=device,
            physical_batch=options.physical_batch or _PHYSICAL_BATCH.get(device, _PHYSICAL_BATCH["cuda"]),
            threads=options.threads or max(1, (os.cpu_count() or 1) // options.parallel),
            checkpoint=folder / f"seed_{seed}.pt",
        )
        for seed in (options.seeds if options.seeds is not None else range(seeds))
    ]
    if not options.report_only:
        progress = partial(gather, results, setting=setting, published=published, tasks=tasks)
        try:
            train_all(tasks, parallel=options.parallel, after_a_while=progress)
        except KeyboardInterrupt:
            progress()
            raise SystemExit("stopped; the same command goes on from here") from None
    report(results, setting=setting, published=published)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("preset", nargs="?", choices=PRESETS, default="fig5a")
    parser.add_argument("--data-dir", type=Path, help="MNIST in IDX files")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], help="0,1,2")
    parser.add_argument(
        "--parallel", type=int, default=1, help="seeds trained at once, in processes of their own"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--physical-batch", type=int, help="gradients computed at once")
    parser.add_argument("--threads", type=int, help="per process; by default the processors are shared out")
    parser.add_argument("--results", type=Path, help="JSON file; the figure goes beside it")
    parser.add_argument("--checkpoints", type=Path, help="folder")
    parser.add_argument("--report-only", action="store_true", help="train nothing; account and draw anew")
    group = parser.add_argument_group("instead of the setting's own numbers")
    group.add_argument("--mechanism", choices=[*registry.available(registry.Kind.VECTORS), "none"])
    group.add_argument("--non-private", dest="mechanism", action="store_const", const="none")
    group.add_argument("--local-epsilon", type=float)
    group.add_argument("--clip", type=float, help="radius of the ball, in the mechanism's norm")
    group.add_argument("--cohort", type=int)
    group.add_argument("--population", type=int, help="the first so many images alone")
    group.add_argument("--epochs", type=int)
    group.add_argument("--rates", type=rates, help="learning rates: 0.3,0.18@71 is 0.18 from epoch 71 on")
    group.add_argument("--delta", type=float)
    return parser


if __name__ == "__main__":
    main()
