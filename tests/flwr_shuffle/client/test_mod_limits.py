"""A client's own limits hold whatever a server asks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import flwr_shuffle.client as mod_module
import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.supercore.task_identity import TaskIdentity
from flwr_shuffle.client import ShuffleMod, failed_share, stricter
from flwr_shuffle.messages import ClientRefusal, payload_of
from mod_harness import GENEROUS, adding, ask, grid_of, instruction

from shuffle_plugins.accounting import Sampling, ShuffleAccountant
from shuffle_plugins.ledger import ClientLedger, ClientLimits
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServiceKey,
    SigningKey,
    public_key_bytes,
    write_private_key,
)

MODEL = {"w": np.zeros(4, np.float32)}
TRAIN = adding({"w": np.ones(4)})


def _spec(local_epsilon: float, **options: Any) -> MechanismSpec:
    return MechanismSpec(name="linf-block", local_epsilon=local_epsilon, **options)


ROUNDS = {"shuffle-max-rounds": 1000}


@pytest.fixture
def counted(tmp_path: Path) -> dict[str, Any]:
    """A total limit, and where the node counts."""
    return ROUNDS | {"shuffle-ledger-file": str(tmp_path / "counted.db")}


def _answer(mod: ShuffleMod, node_config: dict[str, Any], asked: Any) -> ClientRefusal | None:
    answer = ask(grid_of(TRAIN, mod=mod, node_config=node_config), MODEL, asked)
    return ClientRefusal(answer.error.reason or "") if answer.has_error() else None


@pytest.mark.parametrize(
    ("constructor", "configured", "allowed"),
    [(2.0, None, 2.0), (None, 2.0, 2.0), (2.0, 3.0, 2.0), (3.0, 2.0, 2.0), (None, 2, 2.0)],
)
def test_the_stricter_limit_holds(
    constructor: float | None, configured: float | None, allowed: float, counted: dict[str, Any]
) -> None:
    mod = ShuffleMod(limits=None if constructor is None else ClientLimits(max_local_epsilon=constructor))
    config = counted | ({} if configured is None else {"shuffle-max-local-epsilon": configured})
    assert _answer(mod, config, instruction(_spec(allowed))) is None
    above = instruction(_spec(float(np.nextafter(allowed, 9))))
    assert _answer(mod, config, above) == ClientRefusal.MAX_LOCAL_EPSILON


def test_each_limit_is_the_least_of_both() -> None:
    one = ClientLimits(max_local_epsilon=1.0, max_rounds=9)
    other = ClientLimits(max_local_epsilon=2.0, max_rounds=3, max_total_local_epsilon=7.0)
    expected = ClientLimits(max_local_epsilon=1.0, max_rounds=3, max_total_local_epsilon=7.0)
    assert stricter(one, other) == stricter(other, one) == expected
    pinned = ClientLimits(max_epsilon=2.0, delta=1e-6, min_reports=30)
    expected = ClientLimits(max_epsilon=1.0, delta=1e-6, min_reports=30)
    assert stricter(pinned, ClientLimits(max_epsilon=1.0, delta=1e-5, min_reports=10)) == expected


def test_an_app_does_not_widen_an_operator_s_sums_alone() -> None:
    sums = ClientLimits(max_local_epsilon=math.inf, max_epsilon=1.0, delta=1e-6, max_rounds=3)
    for pair in ((sums, ClientLimits(max_local_epsilon=8.0)), (ClientLimits(max_local_epsilon=8.0), sums)):
        with pytest.raises(ValueError, match="must say the same"):
            stricter(*pair)
    assert stricter(sums, ClientLimits(max_rounds=2)).agrees_to_sums_alone


@pytest.mark.parametrize("keeps_file", [True, False])
def test_rounds_and_total_are_counted(keeps_file: bool, tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_local_epsilon": 2.0, "max_rounds": 3, "max_total_local_epsilon": 4.5}
    config: dict[str, Any] = {}
    if keeps_file:
        config = {f"shuffle-{name.replace('_', '-')}": limit for name, limit in limits.items()}
        config["shuffle-ledger-file"] = str(tmp_path / "ledger.db")
    mod = ShuffleMod(limits=None if keeps_file else ClientLimits(**limits))
    grid = grid_of(TRAIN, mod=mod, node_config=config)

    def refused(local_epsilon: float) -> str | None:
        answer = ask(grid, MODEL, instruction(_spec(local_epsilon)))
        return answer.error.reason if answer.has_error() else None

    assert refused(2.0) is None
    assert refused(2.0) is None
    assert refused(0.6) == ClientRefusal.MAX_TOTAL
    assert refused(0.25) is None
    assert refused(0.001) == ClientRefusal.MAX_ROUNDS


@pytest.mark.parametrize("keeps_file", [True, False])
def test_a_token_is_answered_once(keeps_file: bool, tmp_path: Path) -> None:
    config = {"shuffle-ledger-file": str(tmp_path / "ledger.db")} if keeps_file else {}
    grid = grid_of(TRAIN, node_config=config)
    asked = instruction(_spec(1.0))
    assert not ask(grid, MODEL, asked).has_error()
    assert ask(grid, MODEL, asked).error.reason == ClientRefusal.TOKEN_SPENT
    renamed = instruction(_spec(0.5), token=asked.token, run="another", server_round=9)
    assert ask(grid, MODEL, renamed).error.reason == ClientRefusal.TOKEN_SPENT


@pytest.mark.parametrize(
    ("limits", "config", "refusal"),
    [
        ({}, {}, ClientRefusal.NO_LIMITS),
        ({"max_rounds": 5, "max_total_local_epsilon": 3.0}, {}, ClientRefusal.NO_LIMITS),
        ({"max_local_epsilon": 4.0}, {}, ClientRefusal.NO_TOTAL),
        ({}, {"shuffle-max-local-epsilon": 4.0}, ClientRefusal.NO_TOTAL),
        ({"max_local_epsilon": 4.0, "max_total_local_epsilon": math.inf}, {}, ClientRefusal.NO_TOTAL),
        ({"max_local_epsilon": 4.0}, {"shuffle-max-rounds": 9}, ClientRefusal.NO_LEDGER),
        ({"max_rounds": 9}, {"shuffle-max-local-epsilon": 4.0}, ClientRefusal.NO_LEDGER),
        ({"max_local_epsilon": 4.0, "max_total_local_epsilon": 40.0}, {}, None),
        ({"max_local_epsilon": 4.0, "max_rounds": 9}, {}, None),
    ],
)
def test_consent_to_rounds_without_end_is_none(
    limits: dict[str, Any], config: dict[str, Any], refusal: ClientRefusal | None
) -> None:
    """One round costs what its limit says; a thousand of them give the data away."""
    mod = ShuffleMod(limits=ClientLimits(**limits) if limits else None)
    assert _answer(mod, config, instruction(_spec(0.5))) == refusal


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({}, ClientRefusal.NO_LIMITS),
        ({"partition-id": 0, "num-partitions": 4}, ClientRefusal.NO_LIMITS),
        ({"shuffle-min-reports": 2}, ClientRefusal.NO_LIMITS),
        ({"shuffle-max-local-epsilon": 400.0}, ClientRefusal.NO_TOTAL),
        ({"shuffle-max-local-epsilon": 400.0, "shuffle-max-rounds": 9}, None),
    ],
)
def test_on_a_supernode_the_apps_limits_do_not_replace_its_operators(
    config: dict[str, Any], refusal: ClientRefusal | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's code comes with the run, so its limits may be the server's."""
    generous = {"shuffle-max-local-epsilon": 400.0, "shuffle-max-rounds": 9}
    mods = [ShuffleMod(limits=GENEROUS), ShuffleMod(node_config=lambda context: generous)]
    config = config | {"shuffle-ledger-file": str(tmp_path / "ledger.db")} if config else {}
    for mod in mods:
        assert _answer(mod, {}, instruction(_spec(400.0))) is None
        grid = grid_of(TRAIN, mod=mod, node_config=config)
        with monkeypatch.context() as process:
            process.setattr(TaskIdentity, "_node_id", 4711)  # as Flower's flwr-clientapp does
            answer = ask(grid, MODEL, instruction(_spec(400.0)))
        assert (answer.error.reason if answer.has_error() else None) == refusal


def test_the_report_is_paid_for_before_training(tmp_path: Path) -> None:
    """So a client that dies in training has counted the round."""
    path = tmp_path / "ledger.db"
    seen: list[int] = []

    def train(message: Message, context: Context) -> Message:
        with ClientLedger(path) as ledger:
            seen.append(ledger.spent().reports)
        raise KeyboardInterrupt

    grid = grid_of(train, node_config={"shuffle-ledger-file": str(path)})
    with pytest.raises(KeyboardInterrupt):
        ask(grid, MODEL, instruction(_spec(1.0)))
    with ClientLedger(path) as ledger:
        assert seen == [ledger.spent().reports] == [1]


def test_refusals_cost_nothing_and_train_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    trained: list[int] = []

    def train(message: Message, context: Context) -> Message:
        trained.append(1)
        return TRAIN(message, context)

    file = {"shuffle-ledger-file": str(path)}
    grid = grid_of(train, node_config=ROUNDS | file | {"shuffle-max-local-epsilon": 1.0})
    for asked in (
        instruction(_spec(1.5)),
        instruction(MechanismSpec(name="no-such", local_epsilon=0.5)),
        instruction(MechanismSpec(name="gaussian", local_epsilon=0.5)),
        instruction(_spec(0.5), analyzer_key=bytes(32)),
        None,
    ):
        assert ask(grid, MODEL, asked).has_error()
    assert not trained
    with ClientLedger(path) as ledger:
        assert ledger.spent().reports == 0


def test_dummies_are_charged_too() -> None:
    """Else the round in which the budget ends would say how often a client reported."""
    mod = ShuffleMod(limits=ClientLimits(max_local_epsilon=1.0, max_rounds=2))
    grid = grid_of(TRAIN, mod=mod)
    answers = [ask(grid, MODEL, instruction(_spec(1.0), participation=1e-18)) for _ in range(3)]
    assert [answer.has_error() for answer in answers] == [False, False, True]


@pytest.mark.parametrize(
    ("mod", "config", "refusal"),
    [
        ({}, {}, ClientRefusal.LOCAL_DELTA),
        ({}, {"shuffle-max-local-delta": 1e-7}, ClientRefusal.LOCAL_DELTA),
        ({}, {"shuffle-max-local-delta": 1e-6}, None),
        ({"max_local_delta": 1e-6}, {}, None),
        ({"max_local_delta": 1e-6}, {"shuffle-max-local-delta": 1e-7}, ClientRefusal.LOCAL_DELTA),
        ({"max_local_delta": 1e-6}, {"shuffle-max-local-delta": 0}, ClientRefusal.LOCAL_DELTA),
    ],
)
def test_a_server_cannot_buy_with_delta(
    mod: dict[str, float], config: dict[str, float], refusal: ClientRefusal | None
) -> None:
    """Gaussian noise at δ0 near one is next to none, whatever its ε0."""
    asked = instruction(MechanismSpec(name="gaussian", local_epsilon=1.0, options=(("local_delta", 1e-6),)))
    assert _answer(ShuffleMod(limits=GENEROUS, **mod), config, asked) == refusal


@pytest.mark.parametrize(
    "config",
    [
        {"shuffle-max-local-epsilon": "4"},
        {"shuffle-max-rounds": 2.0},
        {"shuffle-max-epsilon": 1.0},
        {"shuffle-min-reports": 1},
        {"shuffle-reply-seconds": math.inf},
        {"shuffle-max-local-epsilom": 1.0},
        {"shuffle-ledger-file": ""},
        {"shuffle-mixer-public-key": "ab" * 32},
        {"shuffle-signing-key-file": "key.pem"},
        {"shuffle-mixer-public-key": "ab" * 31, "shuffle-signing-key-file": "key.pem"},
    ],
)
def test_a_node_config_that_makes_no_sense_is_refused(config: dict[str, Any]) -> None:
    """A mistyped limit must not be without effect."""
    assert _answer(ShuffleMod(limits=GENEROUS), config, instruction(_spec(0.5))) == ClientRefusal.BAD_SETTINGS


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to look at", None])
def test_a_ledger_that_cannot_be_used_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db" if content else tmp_path / "no" / "such" / "folder" / "ledger.db"
    if content:
        path.write_bytes(content)
    config = {"shuffle-ledger-file": str(path)}
    assert _answer(ShuffleMod(limits=GENEROUS), config, instruction(_spec(0.5))) == ClientRefusal.LEDGER


class _Sealed:
    """A client that has pinned a mixer's key, and the keys of the other two parties."""

    def __init__(self, folder: Path) -> None:
        self.mixer, self.analyzer, self.signer = (
            ServiceKey.generate(),
            SealingKey.generate(),
            SigningKey.generate(),
        )
        write_private_key(folder / "client.pem", self.signer)
        self.config = {
            "shuffle-mixer-public-key": self.mixer.public.hex(),
            "shuffle-signing-key-file": str(folder / "client.pem"),
        }


@pytest.fixture
def sealed(tmp_path: Path) -> _Sealed:
    return _Sealed(tmp_path)


def test_a_client_seals_to_the_mixers_that_it_has_pinned_alone(sealed: _Sealed) -> None:
    mod, key = ShuffleMod(limits=GENEROUS), public_key_bytes(sealed.analyzer)
    for config, asked, refusal in (
        (sealed.config, {}, ClientRefusal.PINNED),
        (sealed.config, {"analyzer_key": key, "mixers": 2}, ClientRefusal.OTHER_PINNED),
        (sealed.config, {"analyzer_key": bytes(32)}, ClientRefusal.BAD_INSTRUCTION),  # no point
        ({}, {"analyzer_key": key}, ClientRefusal.NOT_PINNED),
    ):
        assert _answer(mod, config, instruction(_spec(1.0), **asked)) == refusal


@pytest.mark.parametrize("fault", ["missing", "open", "other"])
def test_a_signing_key_that_cannot_be_used(fault: str, sealed: _Sealed, tmp_path: Path) -> None:
    path = tmp_path / "client.pem"
    if fault == "open":
        path.chmod(0o644)
    else:
        path.unlink()
    if fault == "other":
        write_private_key(path, SealingKey.generate())
    asked = instruction(_spec(1.0), analyzer_key=public_key_bytes(sealed.analyzer))
    assert _answer(ShuffleMod(limits=GENEROUS), sealed.config, asked) == ClientRefusal.BAD_SIGNING_KEY


# -- what an operator pins of the round as a whole ----------------------------------------------------------


def test_a_smaller_batch_than_the_operator_agrees_to_is_refused() -> None:
    mod = ShuffleMod(limits=GENEROUS)
    config = {"shuffle-min-reports": 50}
    assert _answer(mod, config, instruction(_spec(1.0), minimum=49)) == ClientRefusal.FEW_REPORTS
    assert _answer(mod, config, instruction(_spec(1.0), minimum=50)) is None


@pytest.mark.parametrize("keeps_file", [True, False])
def test_the_client_computes_its_own_epsilon_from_what_was_promised(keeps_file: bool, tmp_path: Path) -> None:
    """Against its own composition of the promised rounds, each of 100 reports that all take part."""
    spec = MechanismSpec(name="linf-block", local_epsilon=1.0)
    one = spec.build(dim=4).round(population=100, cohort=100, sampling=Sampling.FULL)
    accountant = ShuffleAccountant()
    accountant.step(one, num_steps=5)
    limit = accountant.epsilon(1e-6, lower=False).upper
    pinned: dict[str, Any] = {"max_epsilon": limit * 1.0001, "delta": 1e-6, "max_local_epsilon": 8.0}
    pinned["max_rounds"] = 1000
    config: dict[str, Any] = {}
    if keeps_file:
        config = {f"shuffle-{name.replace('_', '-')}": value for name, value in pinned.items()}
        config["shuffle-ledger-file"] = str(tmp_path / "ledger.db")
    grid = grid_of(
        TRAIN, mod=ShuffleMod(limits=None if keeps_file else ClientLimits(**pinned)), node_config=config
    )
    refused = []
    for _ in range(8):
        answer = ask(grid, MODEL, instruction(spec, minimum=100))
        refused.append(answer.error.reason if answer.has_error() else None)
    assert refused == [None] * 5 + [ClientRefusal.MAX_EPSILON] * 3


def test_a_large_promise_is_no_way_to_rounds_without_end(sealed: _Sealed) -> None:
    """Where nobody holds the server to its promise, a certified ε alone is no limit."""
    mod = ShuffleMod(limits=ClientLimits(max_local_epsilon=8.0, max_epsilon=1.0, delta=1e-6))
    asked = instruction(_spec(2.0), minimum=10**15)
    assert _answer(mod, {}, asked) == ClientRefusal.NO_TOTAL
    with_mixer = instruction(_spec(2.0), minimum=10**6, analyzer_key=public_key_bytes(sealed.analyzer))
    assert _answer(mod, sealed.config, with_mixer) is None


@pytest.mark.parametrize("minimum", [10**15, (1 << 63) - 1])
def test_no_promise_makes_a_client_compute_for_long(minimum: int) -> None:
    """The composition of a round of 10**15 reports took two minutes."""
    mod = ShuffleMod(limits=ClientLimits(max_local_epsilon=8.0, max_rounds=9, max_epsilon=4.0, delta=1e-6))
    assert _answer(mod, {}, instruction(_spec(2.0), minimum=minimum)) is None


# -- when a reply leaves ------------------------------------------------------------------------------------


def _timed(
    train: Callable[[Message, Context], Message], monkeypatch: pytest.MonkeyPatch, *, on_failure: Any = "hide"
) -> tuple[Message, list[str]]:
    """A reply under a fixed time, and what was waited for; no test depends on how long anything took."""
    waited: list[str] = []

    def join(thread: Thread, *, until: float) -> None:
        waited.append("training")
        if train is _never:
            _LATE.append(thread)
        else:
            thread.join()

    monkeypatch.setattr(mod_module, "_join", join)
    monkeypatch.setattr(mod_module, "_sleep", lambda until: waited.append("the time"))
    mod = ShuffleMod(limits=GENEROUS, on_failure=on_failure)
    grid = grid_of(train, mod=mod, node_config={"shuffle-reply-seconds": 60.0})
    return ask(grid, MODEL, instruction(_spec(400.0))), waited


_END = Event()
_LATE: list[Thread] = []


def _let_end() -> None:
    """End the training that was too late, lest it go on during the next test."""
    _END.set()
    while _LATE:
        _LATE.pop().join()


def _never(message: Message, context: Context) -> Message:
    _END.wait()
    return TRAIN(message, context)


def _failing(message: Message, context: Context) -> Message:
    raise RuntimeError


@pytest.mark.parametrize("train", [TRAIN, _failing, _never])
def test_every_reply_leaves_at_its_time_and_is_made_once(
    train: Callable[[Message, Context], Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a range proof it is most of a client's work: nothing is made that is then thrown away."""
    payloads: list[bytes] = []
    honest = mod_module._Task.payload

    def counted(self: Any, reports: Any, **more: Any) -> bytes:
        payloads.append(honest(self, reports, **more))
        return payloads[-1]

    monkeypatch.setattr(mod_module._Task, "payload", counted)
    _END.clear()
    answer, waited = _timed(train, monkeypatch)
    sent = list(payloads)
    _let_end()
    assert sent == [payload_of(answer)]
    assert waited == ["training", "training", "the time"]
    assert len(sent[0]) == _spec(400.0).report_bytes(dim=4) + 1


def test_training_whose_reply_has_left_ends_and_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would train on beside the next round, in a process of many nodes, and write into its state."""
    begun, threads = Event(), list[Thread]()

    def endless(message: Message, context: Context) -> Message:
        begun.set()
        while True:
            time.sleep(0.01)

    def join(thread: Thread, *, until: float) -> None:
        threads.append(thread)
        begun.wait()

    monkeypatch.setattr(mod_module, "_sleep", lambda until: None)
    monkeypatch.setattr(mod_module, "_join", join)
    grid = grid_of(endless, node_config={"shuffle-reply-seconds": 60.0})
    assert not ask(grid, MODEL, instruction(_spec(400.0))).has_error()
    threads[0].join(timeout=600)
    assert not threads[0].is_alive()
    assert failed_share(grid.context(grid.get_node_ids()[0])) == 1
