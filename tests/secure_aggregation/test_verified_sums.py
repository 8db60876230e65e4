"""Verified sums: hostile clients are left out and honest ones added up; aggregators answer once."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sharing_parties import LARGEST, SumParties, round_context
from test_series import WINDOW

from shuffle_plugins.secure_aggregation import (
    CheckFailed,
    ResidueLayout,
    RoundVerifier,
    Sealed,
    VerifiedTerms,
    sealed_seed_size,
    share_with_proof,
)
from shuffle_plugins.secure_aggregation.aggregator import ProvenShares
from shuffle_plugins.secure_aggregation.prio3 import VerificationError
from shuffle_plugins.secure_aggregation.prio3.prio3 import NONCE_SIZE, SEED_SIZE
from shuffle_plugins.shuffler import BatchRefused, Refusal, ShuffleError


class VerifiedParties(SumParties):
    """Clients, aggregators and a server of a verified sum."""

    def terms_of(self, **changes: Any) -> VerifiedTerms:
        plain = vars(super().terms_of())
        return VerifiedTerms(**{**plain, "largest": LARGEST, **changes})

    def of(
        self, client: int, made: ProvenShares, *, terms: VerifiedTerms | None = None
    ) -> tuple[bytes, list[Sealed]]:
        """What the server gets of a client, and what it passes on to each aggregator."""
        return made.share, self.sealed(made.share, made.secrets, self.signing_keys[client], terms=terms)

    def honest(self, client: int) -> tuple[bytes, list[Sealed]]:
        return self.of(client, share_with_proof(self.counts[client], terms=self.terms))


@pytest.fixture
def parties(tmp_path: Path) -> VerifiedParties:
    return VerifiedParties(tmp_path)


def run(
    parties: VerifiedParties, sent: list[tuple[bytes, list[Sealed]]]
) -> tuple[np.ndarray, list[int], list[int]]:
    """(the sum, whose proofs held, whose did not) of one round, as a server runs it."""
    terms = parties.terms
    server = RoundVerifier[int](terms)
    started, refused = [], []
    for client, (share, _) in enumerate(sent):
        try:
            server.start(client, share)
            started.append(client)
        except VerificationError:
            refused.append(client)
    answers = [
        parties.aggregator(position).verify(
            [sent[client][1][position] for client in started], terms=terms, verify_key=server.verify_key
        )
        for position in range(parties.aggregators)
    ]
    held = {}
    for place, client in enumerate(started):
        try:
            shares = [answer.verifier_shares[place] for answer in answers]
            held[client] = server.decide(client, shares)
        except (KeyError, VerificationError):
            refused.append(client)
    sums = [
        parties.aggregator(position).add_verified(
            [(sent[client][1][position], message) for client, message in held.items()], terms=terms
        )
        for position in range(parties.aggregators)
    ]
    return server.total(sums), list(held), sorted(refused)


@pytest.mark.parametrize("aggregators", [1, 2, 3])
def test_a_round_of_honest_clients(tmp_path: Path, aggregators: int) -> None:
    parties = VerifiedParties(tmp_path, aggregators=aggregators)
    sent = [parties.honest(client) for client in range(parties.clients)]
    assert {len(share) for share, _ in sent} == {parties.terms.share_bytes}
    size = sealed_seed_size(parties.terms.secret_bytes)
    assert {len(each.envelope) for _, sealed in sent for each in sealed} == {size}
    total, held, refused = run(parties, sent)
    assert np.array_equal(total, parties.counts.sum(axis=0))
    assert (held, refused) == ([0, 1, 2, 3, 4], [])


def out_of_bounds(parties: VerifiedParties) -> tuple[bytes, list[Sealed]]:
    """A client that writes a bit of 1,000,000, and proves it as well as it can."""
    terms, prio3 = parties.terms, parties.terms.prio3
    encoded = prio3.valid.encode(parties.counts[0])
    encoded[3] = 1_000_000
    seeds = [secrets.token_bytes(SEED_SIZE) for _ in range(prio3.rand_size // SEED_SIZE)]
    report = prio3._shard_encoded(
        encoded, context=terms.digest(), nonce=secrets.token_bytes(NONCE_SIZE), seeds=seeds
    )
    public = report.nonce + report.public_share
    leader, *helpers = report.input_shares
    return parties.of(0, ProvenShares(public + leader, tuple(public + helper for helper in helpers)))


def altered(
    place: int | None, *, secret: bool = False
) -> Callable[[VerifiedParties], tuple[bytes, list[Sealed]]]:
    """A client whose share for the server, or secret for one aggregator, was altered before it was sealed."""

    def send(parties: VerifiedParties) -> tuple[bytes, list[Sealed]]:
        made = share_with_proof(parties.counts[0], terms=parties.terms)
        data = bytearray(made.secrets[1] if secret else made.share)
        if place is None:
            data[:] = secrets.token_bytes(len(data))
        else:
            data[place] ^= 1
        if secret:
            return parties.of(0, made._replace(secrets=(made.secrets[0], bytes(data))))
        return parties.of(0, made._replace(share=bytes(data)))

    return send


def for_other_terms(**changes: Any) -> Callable[[VerifiedParties], tuple[bytes, list[Sealed]]]:
    """A client that proves for another round or bound, and seals for this one."""

    def send(parties: VerifiedParties) -> tuple[bytes, list[Sealed]]:
        other = parties.terms_of(**changes)
        return parties.of(0, share_with_proof(parties.counts[0], terms=other))

    return send


def replayed(parties: VerifiedParties) -> tuple[bytes, list[Sealed]]:
    """What the client sent in an earlier round, envelopes and all."""
    other = parties.terms_of(context=round_context(token=bytes(15) + b"x"))
    return parties.of(0, share_with_proof(parties.counts[0], terms=other), terms=other)


def other_public_shares(parties: VerifiedParties) -> tuple[bytes, list[Sealed]]:
    """A client that sends an aggregator another public share, and a proof that holds all the same.

    Its parties go by different joint randomness; it knows both, and proves for the mixture. Its counts are
    the largest, whose bits are all 1: then the proof's outputs are zero whatever the randomness.
    """
    terms, prio3 = parties.terms, parties.terms.prio3
    field, valid, arity = prio3.field, prio3.valid, prio3.valid.arity
    made = share_with_proof(np.full(parties.size, LARGEST), terms=terms)
    other = bytearray(made.secrets[-1])
    other[NONCE_SIZE] ^= 1  # what the leader's part of the joint randomness is said to be
    held = [made.share, *made.secrets[:-1], bytes(other)]
    received = [prio3._received(aggregator=j, **terms._parts(each)) for j, each in enumerate(held)]
    proofs = [np.split(each.proofs, prio3.proofs) for each in received]
    joint = [prio3._joint_randomness(terms.digest(), each.state.joint_randomness_seed) for each in received]
    mine = list[np.ndarray]()
    for i in range(prio3.proofs):
        wires = field.zeros(arity * valid.wire_length)
        for each, proof, randomness in zip(received, proofs, joint, strict=True):
            of_party = valid._wires(each.encoded, proof[i][:arity], randomness[i], shares=prio3.shares)
            wires = field.add(wires, of_party)
        length = valid.wire_length
        polynomial = field.sum_of_products(valid.factors(wires, length), length)[:-1]
        for proof in proofs[1:]:
            polynomial = field.subtract(polynomial, proof[i][arity:])
        mine += [proofs[0][i][:arity], polynomial]
    proof_bytes = field.encode(np.concatenate(mine))
    share = made.share[: -SEED_SIZE - len(proof_bytes)] + proof_bytes + made.share[-SEED_SIZE:]
    return parties.of(0, ProvenShares(share, tuple(held[1:])))


HOSTILE = {
    "another public share for one aggregator": other_public_shares,
    "out of bounds": out_of_bounds,
    "random": altered(None),
    "too short": lambda parties: (parties.honest(0)[0][:-1], parties.honest(0)[1]),
    "nothing": lambda parties: (b"", parties.honest(0)[1]),
    "nonce altered": altered(0),
    "public share altered": altered(NONCE_SIZE + SEED_SIZE),
    "count altered": altered(NONCE_SIZE + 3 * SEED_SIZE + 8),
    "proof altered": altered(-SEED_SIZE - 8),
    "blind altered": altered(-1),
    "an aggregator's nonce": altered(0, secret=True),
    "an aggregator's public share": altered(NONCE_SIZE, secret=True),
    "an aggregator's seed": altered(-SEED_SIZE - 1, secret=True),
    "an aggregator's blind": altered(-1, secret=True),
    "of another round": for_other_terms(context=round_context(token=bytes(15) + b"x")),
    "of another mechanism": for_other_terms(context=round_context(fingerprint=bytes(31) + b"x")),
    "of another bound": for_other_terms(largest=LARGEST + 1),
    "replayed": replayed,
}


@pytest.mark.parametrize("send", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_client_is_left_out_and_counted(
    parties: VerifiedParties, send: Callable[[VerifiedParties], tuple[bytes, list[Sealed]]]
) -> None:
    sent = [send(parties), *(parties.honest(client) for client in range(1, parties.clients))]
    total, held, refused = run(parties, sent)
    assert np.array_equal(total, parties.counts[1:].sum(axis=0))
    assert (held, refused) == ([1, 2, 3, 4], [0])


def test_an_honest_client_does_not_send_what_is_out_of_bounds(parties: VerifiedParties) -> None:
    for count in (-1, LARGEST + 1):
        with pytest.raises(ValueError, match="from 0 to 9"):
            share_with_proof(np.full(parties.size, count), terms=parties.terms)


def test_an_aggregator_answers_about_a_round_once(parties: VerifiedParties) -> None:
    """Two keys for one report would show something of it."""
    mine = [parties.honest(client)[1][0] for client in range(parties.clients)]
    keys = [secrets.token_bytes(32) for _ in range(2)]
    parties.aggregator(0).verify(mine, terms=parties.terms, verify_key=keys[0])
    again = refused(parties.aggregator(0).verify, mine, terms=parties.terms, verify_key=keys[1])
    assert again is Refusal.REPLAYED


def test_an_aggregator_gives_out_one_sum(parties: VerifiedParties) -> None:
    """The difference of two sums would be one client's share."""
    sent = [parties.honest(client) for client in range(parties.clients)]
    server = RoundVerifier[int](parties.terms)
    for client, (share, _) in enumerate(sent):
        server.start(client, share)
    answers = [
        parties.aggregator(j).verify(
            [sealed[j] for _, sealed in sent], terms=parties.terms, verify_key=server.verify_key
        )
        for j in range(2)
    ]
    messages = [
        server.decide(client, [answer.verifier_shares[client] for answer in answers])
        for client in range(parties.clients)
    ]
    decided = [(sealed[0], message) for (_, sealed), message in zip(sent, messages, strict=True)]
    for few, code in ((decided[:2], Refusal.UNDER_MINIMUM), (decided, Refusal.REPLAYED)):
        assert refused(parties.aggregator(0).add_verified, few, terms=parties.terms) is code
    wrong = [(sealed[1], message) for (_, sealed), message in zip(sent, messages, strict=True)]
    wrong[2] = (wrong[2][0], bytes(32))
    with pytest.raises(BatchRefused) as error:
        parties.aggregator(1).add_verified(wrong, terms=parties.terms)
    assert error.value.code is Refusal.NOT_AGREED
    assert error.value.rejected == {2: Refusal.PROOF_REFUSED}


def test_nothing_of_a_verified_round_is_given_out_unverified(parties: VerifiedParties) -> None:
    """Neither without the proofs' check, also after one of other terms, nor by what adds seeds up."""
    sealed = [parties.honest(client)[1][0] for client in range(parties.clients)]
    aggregator = parties.aggregator(0)
    for act in (aggregator.check, aggregator.add_up):
        with pytest.raises(ShuffleError, match="call verify"):
            act(sealed, terms=parties.terms)
    for _ in range(2):
        with pytest.raises(ShuffleError, match="checked no proof"):
            aggregator.add_verified([(each, bytes(32)) for each in sealed], terms=parties.terms)
        other = replace(parties.terms, largest=1)
        with contextlib.suppress(BatchRefused):  # whose envelopes are none of that round
            aggregator.verify(sealed, terms=other, verify_key=bytes(32))


def test_a_round_of_too_few_is_refused_before_the_server_learns_of_proofs_and_gives_out_nothing(
    parties: VerifiedParties,
) -> None:
    sealed = [parties.honest(client)[1][0] for client in range(parties.clients)]
    code = refused(parties.aggregator(0).verify, sealed[:2], terms=parties.terms, verify_key=bytes(32))
    assert code is Refusal.UNDER_MINIMUM
    with pytest.raises(ShuffleError, match="checked no proof"):
        parties.aggregator(0).add_verified([(each, bytes(32)) for each in sealed], terms=parties.terms)


def test_sums_that_do_not_fit_together_show(parties: VerifiedParties) -> None:
    """Of other clients, or anything random. A lie within bounds would not show, as the draft says."""
    prio3 = parties.terms.prio3
    server = RoundVerifier[int](parties.terms)
    made = [share_with_proof(counts, terms=parties.terms) for counts in parties.counts]
    sums = [prio3.agg_init() for _ in range(2)]
    for client, shares in enumerate(made):
        server.start(client, shares.share)
        started = [
            parties.terms.started(secret, aggregator=1 + j, verify_key=server.verify_key)
            for j, secret in enumerate(shares.secrets)
        ]
        message = server.decide(client, [share for _, share in started])
        sums = [
            prio3.agg_update(total, prio3.verify_next(state, message))
            for total, (state, _) in zip(sums, started, strict=True)
        ]
    honest = [prio3.encode_agg_share(total) for total in sums]
    assert np.array_equal(server.total(honest), parties.counts.sum(axis=0))
    left_out = prio3.field.subtract(sums[1], started[1][0].output_share)  # one client
    uniform = prio3.field.from_integers([secrets.randbelow(prio3.field.modulus) for _ in range(7)])
    for wrong in (left_out, uniform):
        with pytest.raises(CheckFailed):
            server.total([honest[0], prio3.encode_agg_share(wrong)])


def test_a_window_larger_than_any_shows(parties: VerifiedParties) -> None:
    layout = ResidueLayout.of_sum(size=parties.size, largest=12 * LARGEST, clients=5, vectors=2)
    parties.terms = terms = parties.terms_of(layout=layout, window=WINDOW)
    parties.counts = np.random.default_rng(1).integers(0, LARGEST + 1, (5, layout.entries))
    server, sent = RoundVerifier[int](terms), [parties.honest(client) for client in range(5)]
    for client, (share, _) in enumerate(sent):
        server.start(client, share)
    envelopes = list(zip(*(sealed for _, sealed in sent), strict=True))
    answers = [
        parties.aggregator(i).verify(each, terms=terms, verify_key=server.verify_key)
        for i, each in enumerate(envelopes)
    ]
    told = [server.decide(n, [each.verifier_shares[n] for each in answers]) for n in range(5)]
    sums = [
        parties.aggregator(i).add_verified(zip(each, told, strict=True), terms=terms)
        for i, each in enumerate(envelopes)
    ]
    data, coins = np.split(parties.counts.sum(axis=0), 2)
    np.testing.assert_array_equal(server.total(sums), WINDOW.coefficients[0] * data + coins)
    field = terms.prio3.field
    honest = field.decode(sums[0], count=layout.size)
    forged = field.encode(field.add(honest, field.from_words(np.full(layout.size, 10**12))))
    with pytest.raises(CheckFailed):
        server.total([forged, *sums[1:]])
