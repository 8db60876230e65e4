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
def test_forks_of_one_state_never_report_alike_nor_share_their_coin() -> None:
    grid = grid_of(TRAIN)
    asked = instruction(PRIVUNIT, participation=0.5)
    ask(grid, LARGE, instruction(PRIVUNIT))  # generators, kernels and threads are running

    def report() -> bytes:
        torch.manual_seed(0)
        return payload_of(ask(grid, LARGE, asked))

    forked = [_in_fork(report) for _ in range(32)]
    assert len({len(payload) for payload in forked}) == 1
    real = [payload for payload in forked if payload[0]]
    assert len(set(real)) == len(real)
    assert 0 < len(real) < 32


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
