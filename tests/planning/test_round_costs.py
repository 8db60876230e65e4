"""Costs of a round: sizes are those of real messages, seconds those that benchmarks have measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuffle_plugins.cli.commands import main
from shuffle_plugins.planning import mixed_round_costs, sum_round_costs
from shuffle_plugins.secure_aggregation import (
    Aggregator,
    ResidueLayout,
    RoundVerifier,
    Sealed,
    SumTerms,
    VerifiedTerms,
    commitment,
    seal_seed,
    share,
    share_with_proof,
)
from shuffle_plugins.shuffler import BatchRequest, Mixer, RoundContext, SpentTokens
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, part_sizes, seal
from shuffle_plugins.shuffler.keys import SealingKey, ServiceKey, SigningKey, public_key_bytes
from shuffle_plugins.shuffler.mixer import BatchSpool

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CONTEXT = RoundContext(run="costs", token=bytes(16), fingerprint=bytes(32))
FACTOR = 2.5
"""Between what the model says and what was measured."""


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def agree(model: float, row: dict[str, Any], *parts: str) -> None:
    measured = sum(row[f"{part}_seconds"] for part in parts)
    assert measured / FACTOR <= model <= measured * FACTOR


# -- bytes, against a round that is really made ------------------------------------------------------------

CLIENTS, SIZE, LARGEST = 3, 37, 9


def made_keys(folder: Path, kind: type[Any]) -> tuple[list[Any], Any]:
    signing = [SigningKey.generate() for _ in range(CLIENTS)]
    key = ServiceKey.generate()
    SpentTokens.create(folder / "rounds", public_key=key.public.sealing)
    enrolled = frozenset(map(public_key_bytes, signing))
    return signing, kind(key=key, enrolled=enrolled, minimum=2, state=folder / "rounds")


def test_bytes_of_a_shared_sum_are_those_of_its_messages(tmp_path: Path) -> None:
    signing, aggregator = made_keys(tmp_path, Aggregator)
    layout = ResidueLayout.of_sum(size=SIZE, largest=LARGEST, clients=CLIENTS)
    terms = SumTerms(context=CONTEXT, layout=layout, aggregators=(aggregator.public_key.sealing,))
    replies, sealed = [], []
    for key in signing:
        made = share(np.full(SIZE, 4), layout=layout, aggregators=1, check_seed=bytes(32))
        data = made.share.to_bytes()
        envelope = seal_seed(
            made.seeds[0], terms=terms, share=data, aggregator_key=terms.aggregators[0], signing_key=key
        )
        replies.append(data + envelope)
        sealed.append(Sealed(commitment(data), envelope))
    assert aggregator.check(sealed, terms=terms) == {}
    answer = aggregator.add_up(sealed, terms=terms, exact=True).total.to_bytes()
    request = 2 * sum(len(each.commitment) + len(each.envelope) for each in sealed)

    client, server, helper = sum_round_costs(clients=CLIENTS, size=SIZE, largest=LARGEST)
    assert client.sent == len(replies[0])
    assert (server.received, server.sent) == (sum(map(len, replies)) + len(answer), request)
    assert (helper.received, helper.sent) == (request, len(answer))


def test_bytes_of_a_verified_sum_are_those_of_its_messages(tmp_path: Path) -> None:
    signing, aggregator = made_keys(tmp_path, Aggregator)
    layout = ResidueLayout.of_sum(size=SIZE, largest=LARGEST, clients=CLIENTS)
    keys = (aggregator.public_key.sealing,)
    terms = VerifiedTerms(context=CONTEXT, layout=layout, aggregators=keys, largest=LARGEST)
    server_side, replies, sealed = RoundVerifier[int](terms), [], []
    for number, key in enumerate(signing):
        made = share_with_proof(np.full(SIZE, 4), terms=terms)
        envelope = seal_seed(
            made.secrets[0], terms=terms, share=made.share, aggregator_key=keys[0], signing_key=key
        )
        server_side.start(number, made.share)
        replies.append(made.share + envelope)
        sealed.append(Sealed(commitment(made.share), envelope))
    answers = aggregator.verify(sealed, terms=terms, verify_key=server_side.verify_key).verifier_shares
    messages = [server_side.decide(number, [answers[number]]) for number in range(CLIENTS)]
    total = aggregator.add_verified(zip(sealed, messages, strict=True), terms=terms)
    assert (server_side.total([total]) == 4 * CLIENTS).all()
    request = 2 * sum(len(each.commitment) + len(each.envelope) for each in sealed) + sum(map(len, messages))
    answered = sum(map(len, answers.values()))

    client, server, helper = sum_round_costs(clients=CLIENTS, size=SIZE, largest=LARGEST, verified=True)
    assert client.sent == len(replies[0])
    assert (server.received, server.sent) == (sum(map(len, replies)) + answered + len(total), request)
    assert (helper.received, helper.sent) == (request, answered + len(total))


def test_each_aggregator_gets_all_envelopes() -> None:
    one = sum_round_costs(clients=CLIENTS, size=SIZE, largest=LARGEST)
    three = sum_round_costs(clients=CLIENTS, size=SIZE, largest=LARGEST, aggregators=3)
    assert three[2].received == one[2].received
    assert three[1].sent == 3 * one[1].sent
    assert three[0].sent - one[0].sent == 2 * 176


def test_bytes_of_a_mixed_round_are_those_of_its_envelopes(tmp_path: Path) -> None:
    signing, mixer = made_keys(tmp_path, Mixer)
    analyzer = public_key_bytes(SealingKey.generate())
    size = 50
    envelopes = [
        seal(
            bytes(size),
            size=size,
            context=CONTEXT,
            analyzer_key=analyzer,
            mixer_key=mixer.public_key.sealing,
            signing_key=key,
        )
        for key in signing
    ]
    request = BatchRequest.of(envelopes, context=CONTEXT, analyzer_key=analyzer, mixers=(mixer.public_key,))
    _, reports = BatchSpool(tmp_path / "batches", mixer=mixer).mix(request, envelopes)
    given = sum(map(len, reports))

    client, server, node = mixed_round_costs(clients=CLIENTS, report_bytes=size)
    assert client.sent == len(envelopes[0])
    assert (node.received, node.sent) == (sum(map(len, envelopes)), given)
    assert (server.received, server.sent) == (node.received + node.sent, node.received)


def test_bytes_of_mixers_in_a_row_are_those_of_their_layers() -> None:
    mixers = [ServiceKey.generate() for _ in range(3)]
    signing_key, analyzer = SigningKey.generate(), public_key_bytes(SealingKey.generate())
    row = tuple(key.public.sealing for key in mixers)
    envelope = seal(
        bytes(50), size=50, context=CONTEXT, analyzer_key=analyzer, mixer_key=row, signing_key=signing_key
    )
    sizes = part_sizes(50, mixers=3)
    assert len(envelope) == sum(sizes)
    layers, tickets = [envelope[: sizes[0]]], [b"", envelope[sizes[0] :][: sizes[1]], envelope[-sizes[2] :]]
    for key in mixers:
        opener = EnvelopeOpener(
            context=CONTEXT,
            analyzer_key=analyzer,
            private_key=key.sealing,
            enrolled=frozenset([public_key_bytes(signing_key)]),
            mixer_keys=row,
        )
        layers.append(opener.open(layers[-1]).inner)

    client, server, *nodes = mixed_round_costs(clients=2, report_bytes=50, mixers=3)
    got = [len(layer) + len(ticket) for layer, ticket in zip(layers, tickets, strict=False)]
    assert client.sent == len(envelope)
    assert [node.received for node in nodes] == [2 * size for size in got]
    assert [node.sent for node in nodes] == [2 * len(layer) for layer in layers[1:]]
    assert server.sent == 2 * sum(got)
    assert server.received == 2 * len(envelope) + sum(node.sent for node in nodes)


# -- the command -------------------------------------------------------------------------------------------


def test_the_command_prints_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["round-costs", "--clients", "1e4,2e4", "--dim", "100", "--largest", "7", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["clients"] for row in rows] == [10_000] * 3 + [20_000] * 3
    for clients in (10_000, 20_000):
        expected = [asdict(cost) for cost in sum_round_costs(clients=clients, size=100, largest=7)]
        assert [row for row in rows if row["clients"] == clients] == [
            {"clients": clients, **cost} for cost in expected
        ]
    assert main(["round-costs", "--clients", "1e6", "--report-bytes", "100", "--mixers", "2"]) == 0
    assert capsys.readouterr().out.count("mixer") == 2


# -- seconds, against what the benchmarks have measured ----------------------------------------------------


@pytest.mark.parametrize("row", results("sum_parties")["shared"], ids=lambda row: f"d={row['size']}")
def test_seconds_of_a_shared_sum_are_as_measured(row: dict[str, Any]) -> None:
    clients = 1_000
    largest = ((1 << row["bits"]) - 1) // clients
    client, server, aggregator = sum_round_costs(clients=clients, size=row["size"], largest=largest)
    assert client.sent == row["bytes_to_server"] + row["bytes_to_aggregator"]
    agree(client.seconds, row, "client_share", "client_seal")
    agree(server.seconds / clients, row, "server")
    agree(aggregator.seconds / clients, row, "aggregator_open", "aggregator_expand")


@pytest.mark.parametrize("row", results("sum_parties")["verified"], ids=lambda row: f"d={row['size']}")
def test_seconds_of_a_verified_sum_are_as_measured(row: dict[str, Any]) -> None:
    costs = sum_round_costs(clients=4_096, size=row["size"], largest=row["largest"], verified=True)
    client, server, aggregator = costs
    assert client.sent == row["bytes_to_server"] + row["bytes_to_aggregator"]
    agree(client.seconds, row, "client_share")
    agree(server.seconds / 4_096, row, "server")
    agree(aggregator.seconds / 4_096, row, "aggregator_verify", "aggregator_add")


@pytest.mark.parametrize(
    "row", results("sum_parties")["mixed"], ids=lambda row: f"{row['report_bytes']} bytes"
)
def test_seconds_of_a_mixed_round_are_as_measured(row: dict[str, Any]) -> None:
    client, server, _ = mixed_round_costs(clients=100, report_bytes=row["report_bytes"])
    assert client.sent == row["bytes_to_mixer"]
    agree(client.seconds, row, "client_seal")
    agree(server.seconds / 100, row, "server_open")
