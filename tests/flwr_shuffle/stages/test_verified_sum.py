"""The shared sum with range proofs: honest rounds, and clients, aggregators and servers that are not."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr_shuffle import client as mod
from flwr_shuffle.grids import Anonymous
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    SERVICE_KEY,
    Instruction,
    Role,
    Step,
    payload_of,
)
from sharing_run import DIM, SUM, SharedRun, recorded

from shuffle_plugins.secure_aggregation import VerifiedTerms, seal_seed, share_with_proof
from shuffle_plugins.secure_aggregation.prio3.prio3 import NONCE_SIZE, SEED_SIZE
from shuffle_plugins.shuffler import Refusal


class VerifiedRun(SharedRun):
    """Clients that prove their counts, and a server that asks for it."""

    def new_stage(self, **options: Any) -> Any:
        return super().new_stage(**{"verified": True, **options})

    def terms(self, instruction: Instruction) -> VerifiedTerms:
        assert instruction.shared is not None
        pinned = [key.public.sealing for key in self.keys]
        terms = instruction.shared.of_round(instruction, self.mechanism, dim=DIM, aggregators=pinned)
        assert isinstance(terms, VerifiedTerms)
        return terms

    def payload(self, client: int, share: bytes, parts: tuple[bytes, ...], *, terms: VerifiedTerms) -> bytes:
        """What a client with a key of its own may send, whatever its app does."""
        envelopes = [
            seal_seed(
                secret,
                terms=terms,
                share=share,
                aggregator_key=key.public.sealing,
                signing_key=self.signing_keys[client],
            )
            for secret, key in zip(parts, self.keys, strict=True)
        ]
        return b"".join([share, *envelopes])


@pytest.fixture
def run(tmp_path: Path) -> VerifiedRun:
    return VerifiedRun(folder=tmp_path)


@pytest.fixture
def tossed(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    return recorded(SUM, monkeypatch)


def exactly(found: Anonymous, tossed: list[torch.Tensor]) -> bool:
    """Whether a total is that of these counts and of nothing else."""
    assert found.total is not None
    expected = SUM.estimate(torch.stack(tossed).sum(dim=0), reports=len(tossed))
    return torch.equal(found.total.sum, expected)


def answered(reply: Message, payload: bytes) -> Message:
    """A reply with another payload."""
    reply.content = RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
    return reply


def test_a_client_makes_one_proof_and_none_for_a_round_that_it_refuses(
    run: VerifiedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    honest = mod.share_with_proof

    def recorded(counts: np.ndarray, **kwargs: Any) -> Any:
        made.append(len(counts))
        return honest(counts, **kwargs)

    monkeypatch.setattr(mod, "share_with_proof", recorded)
    instruction = run.instruction()
    run.answers(instruction)
    assert len(made) == run.clients
    assert all(reply.has_error() for reply in run.answers(instruction))  # its token is spent
    assert len(made) == run.clients


def out_of_bounds(run: VerifiedRun, terms: VerifiedTerms, honest: bytes) -> bytes:
    """A count of ten million in the first entry, proven as well as one can."""
    prio3 = terms.prio3
    encoded = prio3.valid.encode(np.zeros(terms.layout.size, np.int64))
    encoded[0] = 10_000_000
    seeds = [secrets.token_bytes(SEED_SIZE) for _ in range(prio3.rand_size // SEED_SIZE)]
    report = prio3._shard_encoded(
        encoded, context=terms.digest(), nonce=secrets.token_bytes(NONCE_SIZE), seeds=seeds
    )
    public = report.nonce + report.public_share
    leader, *helpers = report.input_shares
    return run.payload(0, public + leader, tuple(public + each for each in helpers), terms=terms)


def altered_share(run: VerifiedRun, terms: VerifiedTerms, honest: bytes) -> bytes:
    """A share with one more in one count; the envelopes are bound to it."""
    made = share_with_proof(np.zeros(terms.layout.size, np.int64), terms=terms)
    place = NONCE_SIZE + terms.prio3.public_share_size
    share = made.share[:place] + bytes([made.share[place] ^ 1]) + made.share[place + 1 :]
    return run.payload(0, share, made.secrets, terms=terms)


HOSTILE: dict[str, Callable[[VerifiedRun, VerifiedTerms, bytes], bytes]] = {
    "out of bounds": out_of_bounds,
    "altered share": altered_share,
    "another round": lambda run, terms, honest: payload_of(run.answers(run.instruction())[0]),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_client_is_left_out_and_counted(
    run: VerifiedRun, hostile: Callable[..., bytes], tossed: list[torch.Tensor]
) -> None:
    instruction, replies = run.begun()
    honest = list(tossed)
    payload = hostile(run, run.terms(instruction), payload_of(replies[0]))
    answered(replies[0], payload)
    found = run.collect(replies, instruction)
    assert (found.refusal, found.unreadable, found.answered, found.count) == (None, 1, 5, 5)
    assert exactly(found, honest[1:])


def test_too_few_valid_proofs_give_no_sum(run: VerifiedRun) -> None:
    instruction, replies = run.begun()
    terms = run.terms(instruction)
    for client in range(4):
        made = share_with_proof(np.zeros(terms.layout.size, np.int64), terms=terms)
        wrong = made.share[:-1] + bytes([made.share[-1] ^ 1])
        answered(replies[client], run.payload(client, wrong, made.secrets, terms=terms))
    found = run.collect(replies, instruction)
    assert (found.refusal, found.total, found.unreadable) == (Refusal.UNDER_MINIMUM, None, 4)


def asked(run: VerifiedRun, step: Step) -> list[Message]:
    """The requests of one step that the server sent."""
    return [
        message
        for message in run.grid.seen
        if message.metadata.message_type == Role.AGGREGATOR.work
        and message.has_content()
        and message.content.get(SERVICE_KEY, {}).get("step") == json.dumps(step)
    ]


def test_clients_are_told_nothing_of_the_verification_key(run: VerifiedRun) -> None:
    run.round()
    [first, second] = asked(run, Step.CHECK)
    key = first.content[SERVICE_KEY]["verify_key"]
    assert len(key) == 32
    assert second.content[SERVICE_KEY]["verify_key"] == key
    trained = [message for message in run.grid.seen if message.metadata.message_type == "train"]
    assert trained
    assert not any(key.hex() in repr(m.content) or repr(key)[2:-1] in repr(m.content) for m in trained)
