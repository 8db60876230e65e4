"""Clients of ``flower_population.py`` and ``flower_windows.py`` do together what each would do alone."""

from __future__ import annotations

import json

import pytest
import torch
from example_scripts import example_script
from flwr.app import ArrayRecord, Message, RecordDict
from flwr_shuffle import InMemoryStage, MechanismSpec, Replies
from flwr_shuffle.messages import RECORD_KEY, Instruction, payload_of, read_plain_payload

from shuffle_plugins.core import Reports
from shuffle_plugins.shuffler import InMemoryShuffler

CLIENTS, DIM = 30, 13_706


@pytest.fixture(scope="module")
def example():
    with example_script("flower_population") as module:
        yield module


@pytest.fixture(scope="module")
def grid(example):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(CLIENTS, 1, 28, 28, generator=generator)
    return example.PopulationGrid(images, torch.randint(10, (CLIENTS,), generator=generator))


def ask(grid, example, spec):
    network = example.paper_network()
    instruction = Instruction(token=bytes(16), run="1", server_round=1, mechanism=spec)
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), RECORD_KEY: instruction.to_record()})
    nodes = grid.get_node_ids()[5:25]
    asked = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
    return network, nodes, instruction, grid.send_and_receive(asked)


def test_each_client_answers_with_a_report_of_its_own(grid, example):
    spec = MechanismSpec(name="linf-block", local_epsilon=2.0, radius=0.01)
    _, nodes, instruction, replies = ask(grid, example, spec)
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    size = spec.report_bytes(dim=DIM)
    assert all(len(read_plain_payload(payload_of(reply), size=size)) == size for reply in replies)
    assert grid.sizes["payload_bytes"] == size + 1 < grid.sizes["reply_bytes"]
    stage = InMemoryStage(InMemoryShuffler())
    collected = stage.collect(Replies(messages=replies, instruction=instruction, dim=DIM, grid=grid))
    assert (len(collected.reports), collected.unreadable, collected.refusal) == (len(nodes), 0, None)


def own_step(grid, network, client):
    network.zero_grad()
    scores = network(grid._images[client : client + 1])
    torch.nn.functional.cross_entropy(scores, grid._labels[client : client + 1]).backward()
    return -torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


def test_an_update_is_one_step_of_sgd_on_the_clients_image(grid, example):
    network = example.paper_network()
    clients = torch.tensor([3, 0, 29])
    updates = grid._updates(network.state_dict(), clients)
    for update, client in zip(updates, clients.tolist(), strict=True):
        torch.testing.assert_close(update, own_step(grid, network, client), rtol=1e-3, atol=1e-5)


def test_reports_are_of_the_updates(grid, example):
    """At a huge ε0 PrivUnit's report has a cosine of 0.2 with its input; by chance 0.009 is usual.

    One report in 800 is uniform at any ε0, so three of 20 may be: more are, once in 10^8 runs.
    """
    spec = MechanismSpec(name="privunit", local_epsilon=400.0, radius=1e-3)
    network, nodes, _, replies = ask(grid, example, spec)
    near = 0
    for reply, node in zip(replies, nodes, strict=True):
        sent = read_plain_payload(payload_of(reply), size=spec.report_bytes(dim=DIM))
        values = Reports.from_bytes(sent).fields[0].values[0]
        step = own_step(grid, network, node - grid.get_node_ids()[0])
        near += bool(torch.nn.functional.cosine_similarity(values, step, dim=0) > 0.15)
    assert near >= len(nodes) - 3


@pytest.fixture(scope="module")
def windows(example):
    with example_script("flower_windows") as module:
        yield module


def test_clients_of_a_linear_model_send_its_gradient(windows):
    coins = torch.Generator().manual_seed(1)
    rows, labels = torch.randn(5, windows.FEATURES, generator=coins), torch.tensor([3, 1, 4, 1, 5])
    weight = torch.randn(windows.CLASSES, windows.FEATURES, generator=coins).mul_(0.1).requires_grad_()
    found = windows.LinearGrid(rows, labels)._updates({"weight": weight.detach()}, torch.tensor([4, 0]))
    for update, client in zip(found, (4, 0), strict=True):
        loss = torch.nn.functional.cross_entropy(
            rows[client : client + 1] @ weight.T, labels[client : client + 1]
        )
        (gradient,) = torch.autograd.grad(loss, weight)
        torch.testing.assert_close(update, -gradient.flatten(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_both_sums_train_within_epsilon_against_the_server(windows, tmp_path):
    """Twelve clients in turn, in three rounds of four each: at an ε that is too large to protect anybody."""
    coins = torch.Generator().manual_seed(2)
    labels = torch.arange(12) % 2
    rows = torch.nn.functional.normalize(
        torch.randn(12, windows.FEATURES, generator=coins) + 9 * labels[:, None]
    )
    results = tmp_path / "results.json"
    for name in windows.SUMS:
        told = windows.train(
            name,
            200.0,
            train_split=(rows, labels),
            test_split=(rows, labels),
            ledger=tmp_path / "ledger.db",
            cohort=4,
            rounds=9,
        )
        windows.keep(results, told)
        assert 150 < told["epsilon_server"] == told["epsilon_observer"] <= 200
        assert (told["most_rounds_of_a_client"], told["rounds"]) == (3, 9)
    windows.keep(results, told)
    assert [run["sum"] for run in json.loads(results.read_text())] == list(windows.SUMS)
