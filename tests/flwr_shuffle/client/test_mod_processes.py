"""Forked, pickled and threaded clients: no two ever draw the same report."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr_shuffle.client import ShuffleMod
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.messages import payload_of
from mod_harness import GENEROUS, adding, app, ask, grid_of, instruction, question

from shuffle_plugins.mechanisms import MechanismSpec

pytestmark = pytest.mark.process

MODEL = {"w": np.zeros(64, np.float32)}
LARGE = {"w": np.zeros(50_000, np.float32)}
PRIVUNIT = MechanismSpec(name="privunit", local_epsilon=2.0)
TRAIN = adding({"w": np.array(0.5)})


def _seeded(message: Message, context: Context) -> Message:
    """An app that pins every global generator, as many do."""
    torch.manual_seed(0)
    np.random.seed(0)
    return TRAIN(message, context)


def _in_fork(work: Callable[[], bytes]) -> bytes:
    """What a forked child computes; it fails rather than hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(work())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


def test_reports_differ_however_an_app_seeds_its_generators() -> None:
    grid = grid_of(_seeded)
    payloads = {payload_of(ask(grid, MODEL, instruction(PRIVUNIT))) for _ in range(20)}
    assert len(payloads) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("model", [MODEL, LARGE], ids=["small", "large"])
def test_forks_of_one_state_never_report_alike(model: dict[str, np.ndarray]) -> None:
    train = adding({"w": np.array(0.5)})
    grid = grid_of(train)
    asked = instruction(PRIVUNIT)
    warm = payload_of(ask(grid, model, instruction(PRIVUNIT)))  # generators, kernels and threads are running

    def report() -> bytes:
        torch.manual_seed(0)
        return payload_of(ask(grid, model, asked))

    forked = [_in_fork(report) for _ in range(6)]
    assert {len(payload) for payload in forked} == {len(warm)}
    assert len({*forked, warm, report()}) == 8


def test_forks_do_not_share_the_coin() -> None:
    """Self-sampling: thirty-two forks of one state do not all decide alike."""
    grid = grid_of(TRAIN)
    asked = instruction(PRIVUNIT, participation=0.5)
    flags = {_in_fork(lambda: payload_of(ask(grid, MODEL, asked)))[0] for _ in range(32)}
    assert flags == {0, 1}


def test_a_mod_travels_to_other_processes() -> None:
    mod = ShuffleMod(limits=GENEROUS, max_local_delta=1e-9, on_failure="error")
    answered = ask(grid_of(TRAIN, mod=mod), MODEL, instruction(PRIVUNIT))
    size = len(payload_of(answered))
    copy = pickle.loads(pickle.dumps(mod))
    assert repr(copy) == repr(mod)
    assert len(pickle.dumps(mod)) < 1000  # what was built to answer stays behind
    assert len(payload_of(ask(grid_of(TRAIN, mod=copy), MODEL, instruction(PRIVUNIT)))) == size


def test_threads_share_a_mod() -> None:
    """Flower may answer for several nodes at once; torch's own threads are left as they were."""
    threads = torch.get_num_threads()
    mod = ShuffleMod(limits=GENEROUS)
    InProcessGrid(app(TRAIN), num_nodes=1)
    asked = instruction(PRIVUNIT)

    def answer(node: int) -> bytes:
        context = Context(1, node, {}, RecordDict(), {})
        return payload_of(mod(question(MODEL, asked, node=node), context, adding({"w": np.array(0.5)})))

    with ThreadPoolExecutor(8) as pool:
        payloads = list(pool.map(answer, range(2, 66)))
    assert len(set(payloads)) == 64
    assert torch.get_num_threads() == threads
