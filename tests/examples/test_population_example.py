"""The clients of ``examples/flower_population.py`` do together what each would do alone."""

from __future__ import annotations

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
