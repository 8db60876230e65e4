"""The readers of the pages on Opacus, on Flower, and on shuffling between organisations."""

from __future__ import annotations

import importlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flwr_shuffle
import numpy as np
import pytest
import torch
from accounted import accounted
from code_blocks import ROOT
from example_scripts import importable
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import ClientLimits, FixedSize, InProcessGrid, ShuffleMod, ShuffleStrategy, Updates
from flwr_shuffle.client import ClientSettings
from flwr_shuffle.service_nodes import _folder_of, service_of
from opacus_shuffle import PrivacyEngine
from page_readers import a_servers_ledger
from reading import Names, Told, has, reads, types
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import PrivacyStatement, ShuffleRound
from shuffle_plugins.bandits import CentralModel, LinearBandit
from shuffle_plugins.core import rounded
from shuffle_plugins.protocols import VectorSum, WindowedSum, window_coefficients
from shuffle_plugins.secure_aggregation import Aggregator
from shuffle_plugins.shuffler import Mixer, SpentTokens, state_beside
from shuffle_plugins.shuffler.keys import (
    ServiceKey,
    SigningKey,
    enrol_client,
    public_key_bytes,
    write_private_key,
)

OPACUS, FLOWER, SHUFFLING, GROUPS = (
    f"docs/guides/{name}.md" for name in ("opacus", "flower", "shuffling", "groups")
)
DIM = 12
FEW_COINS = VectorSum.with_noise(dim=10, cohort=4, noise_multiplier=4.0)


def records(count: int) -> TensorDataset:
    """Three kinds of rows of length one that a linear model can tell apart."""
    labels = torch.arange(count) % 3
    rows = torch.eye(DIM)[labels] + 0.2 * torch.randn(count, DIM)
    return TensorDataset(nn.functional.normalize(rows, dim=1), labels)


def a_script(count: int = 400) -> Names:
    """What a script has before it becomes private."""
    data, model = records(count), nn.Linear(DIM, 3)
    return {
        "PrivacyEngine": PrivacyEngine,
        "DataLoader": DataLoader,
        "data": data,
        "dataset": data,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(data, batch_size=count // 10),
        "torch": torch,
    }


def an_epoch(names: Names) -> None:
    """The training loop of a script."""
    for x, y in names["loader"]:
        names["optimizer"].zero_grad()
        nn.functional.cross_entropy(names["model"](x), y).backward()
        names["optimizer"].step()


def made_private(**given: Any) -> Names:
    """A script whose objects an engine has made private."""
    names = a_script()
    names["engine"] = PrivacyEngine()
    names["model"], names["optimizer"], names["loader"] = names["engine"].make_private(
        **{
            "module": names["model"],
            "optimizer": names["optimizer"],
            "data_loader": names["loader"],
            "randomizer": "privunit",
            "local_epsilon": 2.0,
            "max_grad_norm": 1.0,
        }
        | given
    )
    return names


def the_script_again(make: Any, **given: Any) -> Any:
    """The arguments that the page leaves out: its first block's, on objects that are not private yet."""
    names = a_script()
    rest = {"module": names["model"], "optimizer": names["optimizer"], "data_loader": names["loader"]}
    if make.__name__ == "make_private_with_epsilon" and "epochs" not in given and "num_steps" not in given:
        rest |= {"epochs": 2, "target_epsilon": 2.93, "target_delta": 1e-5}
    if "noise_multiplier" not in given and make.__name__ == "make_private":
        rest["local_epsilon"] = 4.0
    return make(**{"randomizer": "privunit", "max_grad_norm": 1.0} | rest | given)


@reads("docs/guides/transformers.md", slow=True)
def hugging_face() -> Told:
    names: Names = {}
    printed = yield names
    assert 7.5 < names["metrics"]["epsilon"] <= 8.0
    assert len(names["trainer"].engine.accountant) == 8
    assert "8 × a sum with coins" in printed
    assert len(names["engine"].accountant) == names["EPOCHS"] * len(names["loader"])
    assert names["engine"].get_epsilon(1e-5) <= names["TARGET_EPSILON"]
    assert math.isfinite(names["loss"].item())


@reads(OPACUS, "Opacus: what changes, what is refused, how to choose")
def opacus() -> Told:
    names = a_script() | {"rest_of_code": an_epoch}
    printed = yield names
    assert len(names["engine"].accountant) == 10
    assert printed.splitlines()[-1].startswith("ε ∈ [")


@reads(OPACUS, "Without tuning", slow=True, instead={"dead_leaves(3000": "dead_leaves(600"})
def opacus_without_tuning() -> Told:
    """Digits of 8 × 8, each of whose numbers becomes a square of 3 × 3, in a margin of 2."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)
    large = images.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    names: Names = {"images": nn.functional.pad(large, (2, 2, 2, 2)), "labels": torch.tensor(digits.target)}
    yield names
    rows, labels = names["train"].tensors
    assert 0.97 * 3.0 < names["engine"].get_epsilon(1e-5) <= 3.0
    assert float((names["model"](rows).argmax(dim=1) == labels).float().mean()) > 0.7


def with_an_engine() -> Names:
    return a_script() | {"engine": PrivacyEngine(), "rest_of_call": the_script_again}


has(OPACUS, "Noise that you set yourself: `make_private`", with_an_engine)
has(OPACUS, "Batches of a shuffled epoch", with_an_engine)
has(OPACUS, "Many messages per client: `vector-sum`", with_an_engine, slow=True)
has(OPACUS, "Adaptive clipping", with_an_engine)
has(OPACUS, "Without the engine", lambda: a_script(1_000))


@reads(OPACUS, "Opacus's arguments, loaders and schedulers")
def opacus_schedules() -> Told:
    names = made_private() | {"epochs": 2, "rest_of_code": an_epoch}
    yield names
    assert names["optimizer"].local_epsilon == pytest.approx(2.2)


def _quick_start(page: str, printed: str, learned: str) -> str:
    """Every accuracy is near the least that the page says; each run differs. Gives the page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shares, least = (
        [int(share) for share in found]
        for found in (re.findall(learned, printed), re.findall(r"# .*?(?:0\.)?(\d\d) to .*in ten runs", text))
    )
    assert shares
    assert all(share > bound - 15 for share, bound in zip(shares, least, strict=True))
    return text


@reads("docs/README.md", slow=True)
def front_page() -> Told:
    names: Names = {}
    printed = yield names
    assert printed.startswith("ε ∈ [")
    assert names["engine"].get_epsilon_interval(1e-5).upper <= 3
    right = names["model"](names["digits"].tensors[0]).argmax(dim=1) == names["digits"].tensors[1]
    assert right.float().mean() > 0.8


@reads("docs/start/opacus.md", slow=True)
def start_opacus() -> Told:
    printed = yield {}
    text = _quick_start("docs/start/opacus.md", printed, r"(?:privacy|sample): (\d+)%")
    for said, also in (
        ("18.8 over the whole run", "18.8 over 100 steps"),
        ("a factor of more than e^2.998", "epsilon=2.998"),
        ("no proof could promise less than 2.801", "[2.801, 2.998]"),
        ("gives away ε0 = 3.32.", "each with ε0 = 3.32"),
    ):
        assert said in " ".join(text.split())
        assert also in printed


@reads("docs/start/flower.md", slow=True, by_chance=("adversary: server", "adversary: local"))
def start_flower() -> Told:
    printed = yield {}
    _quick_start("docs/start/flower.md", printed, r"'accuracy': 0\.(\d\d)")


def an_app(app: ClientApp | None = None) -> ClientApp:
    """Clients that move the first number of the model by one, for a sum."""
    limits = ClientLimits(max_local_epsilon=math.inf, max_rounds=100, max_epsilon=1e4, delta=1e-3)
    app = app or ClientApp(mods=[ShuffleMod(limits=limits)])
    app.train()(moved_by_one)
    return app


def moved_by_one(message: Message, context: Context) -> Message:
    moved = message.content["arrays"]["w"].numpy().copy()
    moved[0] += 1
    content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def a_model(numbers: int = 10) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(numbers))})


def in_flower() -> Names:
    """All names that the pages say come from ``flwr_shuffle``, and Flower's own."""
    return {name: getattr(flwr_shuffle, name) for name in flwr_shuffle.__all__} | {
        "ClientApp": ClientApp,
        "FedAvg": FedAvg,
        "math": math,
        "VectorSum": VectorSum,
        "WindowedSum": WindowedSum,
        "window_coefficients": window_coefficients,
        "rest_of_call": the_strategy_again,
    }


def the_strategy_again(strategy: Any, **given: Any) -> ShuffleStrategy:
    """The arguments that the page leaves out: those of its first block, for fewer clients."""
    rest = {"sampling": FixedSize(4), "population": 4, "delta": 1e-3}
    if "randomizer" not in given:
        rest |= {"randomizer": "privunit", "local_epsilon": 4.0, "clipping_norm": 1.0}
    found = strategy(FedAvg(fraction_train=1.0), **rest | given)
    assert isinstance(found, ShuffleStrategy)
    return found


def public_keys(*shortened: str) -> dict[str, str]:
    return {short: ServiceKey.generate().public.hex() for short in shortened}


@reads(FLOWER, "Flower: what changes, what is printed, what is refused")
def flower() -> Told:
    """A round of the thousand clients, each configured as the page has it."""
    names = in_flower()
    yield names
    [written] = re.findall(r"^# (shuffle-max-local-epsilon.*)$", (ROOT / FLOWER).read_text(), re.MULTILINE)
    config = parse_config_args([written])
    grid = InProcessGrid(
        an_app(names["app"]),
        num_nodes=1000,
        node_config=lambda i: config | {"shuffle-ledger-file": f"{i}-{config['shuffle-ledger-file']}"},
    )
    names["strategy"].start(grid, a_model(numbers=1000), num_rounds=1)
    spent = names["strategy"].spending()
    observer, server = (rounded(each.upper, up=True) for each in (spent.observer, spent.server))
    said = f"100 reports; ε ≤ {observer} against an observer, ≤ {server} against the server"
    assert f"aggregate_train: {said}" in (ROOT / FLOWER).read_text()
    assert Path("budget.db").exists()
    assert ClientSettings.of(config).max_rounds == 100


@reads("docs/guides/queries.md", slow=True)
def queries() -> Told:
    """The page's answers, as far off as the noise is in one of some million runs."""
    names: dict[str, Any] = {}
    yield names
    found = names["reply"].content["query_results"]
    assert abs(found["smokes"] - 100) < 75  # 250 if every app failed
    assert len(found["age"]) == 10
    assert 200 < sum(found["age"]) < 800  # near 0 if every app failed
    assert len(found["pressure"]) == 3


has(FLOWER, "Which arrays are trained", in_flower)
has(FLOWER, "Evaluation", in_flower)
has(FLOWER, "Sums of many messages", lambda: in_flower() | {"model": nn.Linear(9, 1)}, slow=True)
has(FLOWER, "Windows of sums", lambda: in_flower() | {"model": nn.Linear(9, 1)}, slow=True)
has(
    FLOWER,
    "Sums that nobody sees",
    lambda: (
        in_flower() | {"app": an_app(), "protocol": FEW_COINS, "abbreviated": public_keys("90c3…", "7b1e…")}
    ),
)


@reads(FLOWER, "Reports on single records")
def flower_records() -> Told:
    app = ClientApp(mods=[ShuffleMod(limits=ClientLimits(max_local_epsilon=8.0, max_rounds=100))])
    names = in_flower() | {"app": app, "records": ["a", "b", "c"]}
    names["rest_of_code"] = lambda here: moved_by_one(here["message"], here["context"])
    del names["drawn_record"]
    yield names
    strategy = the_strategy_again(
        ShuffleStrategy, updates=Updates(records_per_client=3, samples_per_client=2)
    )
    result = strategy.start(InProcessGrid(app, num_nodes=4), a_model(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["reports"] == 8


has(GROUPS, "In Flower")
has(GROUPS, "In Opacus")


def a_ledger() -> Names:
    a_servers_ledger()
    return {}


has(FLOWER, "After a crash", a_ledger, shell=True)


@reads("docs/guides/range-proofs.md", slow=True)
def range_proofs() -> Told:
    names = in_flower() | {"abbreviated": public_keys("90c3…", "7b1e…")}
    names["rest_of_call"] = lambda strategy, **given: the_strategy_again(
        strategy, randomizer=FEW_COINS, **given
    )
    yield names
    assert names["total"] == pytest.approx([0, 4, 9])


def accountants() -> Names:
    """An accountant of each host and of rounds, as a script has them, and as files."""
    accountant = accounted(ShuffleRound(local_epsilon=1.0, population=2000, cohort=200), num_steps=20)
    names = made_private(target_epsilon=2.0, target_delta=1e-5)
    an_epoch(names)
    engine = names["engine"]
    engine.save_checkpoint(path="checkpoint.pt", module=names["model"], optimizer=names["optimizer"])
    torch.save(engine.accountant.state_dict(), "state.pt")
    Path("accountant.json").write_text(json.dumps(engine.accountant.state_dict()))
    a_servers_ledger()
    bandit = LinearBandit(actions=np.eye(3), horizon=100, privacy=CentralModel(epsilon=1.0))
    others = {"strategy": the_strategy_again(ShuffleStrategy), "accountant": accountant, "bandit": bandit}
    return names | others | {"PrivacyStatement": PrivacyStatement}


has("docs/guides/statement.md", names=accountants)
has("docs/guides/statement.md", "The privacy statement: what to say beside an ε", accountants, shell=True)
has(
    SHUFFLING,
    "Which stage to take",
    lambda: in_flower() | {"app": an_app(), "abbreviated": public_keys("90c3…")},
)


def supernode(arguments: list[str]) -> None:
    """A SuperNode that checks its configuration as soon as there is something to do."""
    text = arguments[arguments.index("--node-config") + 1]
    config = parse_config_args([text])
    context = Context(1, 1, config, RecordDict(), {})
    match config.get("shuffle-role"):
        case "mixer":
            service_of(context, Mixer)
        case "aggregator":
            service_of(context, Aggregator)
        case None:
            ClientSettings.of(config)


CLIENT = {"5a1f…": "$ shuffle-plugins keys client client.key"}
has(
    SHUFFLING,
    "Set up a mix node",
    lambda: {"abbreviated": {"90c3…": "$ shuffle-plugins keys mixer mixer.key", **CLIENT}},
    shell=True,
    programs={"flower-supernode": supernode},
)
has(
    SHUFFLING,
    "Shared sums",
    lambda: {
        "abbreviated": CLIENT
        | {"90c3…": "$ shuffle-plugins keys aggregator aggregator.key"}
        | public_keys("7b1e…")
    },
    shell=True,
    programs={"flower-supernode": supernode},
)


@types(
    SHUFFLING,
    "Mix cascades",
    programs={"flower-supernode": supernode},
    instead={
        '"client.key" …': '"client.key" shuffle-max-local-epsilon=4.0 shuffle-max-rounds=9 '
        'shuffle-ledger-file="client.db"'
    },
)
def cascades() -> Told:
    mixer, client = ServiceKey.generate(), SigningKey.generate()
    write_private_key(Path("mixer.key"), mixer)
    write_private_key(Path("client.key"), client)
    SpentTokens.create(state_beside(Path("mixer.key")), public_key=mixer.public.sealing)
    enrol_client(Path("enrolled.txt"), public_key_bytes(client))
    yield {"abbreviated": {"90c3…": mixer.public.hex()} | public_keys("7b1e…")}


@reads(FLOWER, "Aggregators and mix nodes in a simulation", slow=True)
def simulated_parties() -> Told:
    """A round of the sum, whose counts two of six nodes add up."""
    names = in_flower() | {"context": Context(_run(), 0, {}, RecordDict(), {})}
    with keys_removed(names["context"]):
        yield names
        grid = InProcessGrid(an_app(names["app"]), num_nodes=6, run_id=names["context"].run_id)
        strategy = the_strategy_again(
            ShuffleStrategy,
            randomizer=FEW_COINS,
            shuffler=names["stage"],
        )
        result = strategy.start(grid, a_model(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["reports"] == 4


def _run() -> int:
    return secrets.randbits(62)


@contextmanager
def keys_removed(context: Context) -> Iterator[None]:
    """Remove the keys that somebody makes for the simulated parties of a run."""
    try:
        yield
    finally:
        shutil.rmtree(_folder_of(context.run_id), ignore_errors=True)


def flwr_run(app: str, *, rounds: int) -> Callable[[list[str]], None]:
    """``flwr run`` in this process, of an app of the examples, for so many rounds at most."""

    def run(arguments: list[str]) -> None:
        assert arguments[:3] == ["run", ".", "--stream"]
        given = {
            name: parse_config_args([text])
            for name, text in zip(arguments[3::2], arguments[4::2], strict=True)
        }
        assert given.keys() <= {"--federation-config", "--run-config"}
        folder = ROOT / "examples" / app
        config = get_fused_config_from_dir(folder, given.get("--run-config", {}))
        config["num-server-rounds"] = min(rounds, int(config["num-server-rounds"]))
        context = Context(_run(), 0, {}, RecordDict(), config)
        package = app.replace("-", "_")
        with importable(folder), keys_removed(context):
            client, server = (
                importlib.import_module(f"{package}.{end}_app").app for end in ("client", "server")
            )
            nodes = int(given["--federation-config"]["num-supernodes"])
            server(InProcessGrid(client, num_nodes=nodes, run_config=config, run_id=context.run_id), context)

    return run


@types(
    "examples/flower-mnist/README.md",
    "Simulation",
    slow=True,
    programs={"flwr": flwr_run("flower-mnist", rounds=15)},
    by_chance=("round ",),
)
def flower_mnist() -> Told:
    """Accuracies differ from run to run; ε against an observer does not."""
    printed = yield {"abbreviated": {"/tmp/": f"{Path.cwd()}/"}}
    said, section = re.compile(r"^(round \d+): .* (\S+) against an observer", re.MULTILINE), "## Deployment"
    shown = said.findall((ROOT / "examples/flower-mnist/README.md").read_text().split(section)[0])
    assert [name for name, _ in shown] == ["round 0", "round 1", "round 15"]
    assert set(shown) <= set(said.findall(printed)[:16])
    assert "Budget of" in printed


@types(
    "examples/flower-adaped/README.md",
    "Simulation",
    slow=True,
    programs={"flwr": flwr_run("flower-adaped", rounds=1)},
)
def flower_adaped() -> Told:
    printed = yield {"abbreviated": {"/tmp/": f"{Path.cwd()}/", "/path/to/mnist": ""}}
    assert printed.count("round 1: mean accuracy of the clients' own models") == 2
    assert any(Path("adaped-models").iterdir())
