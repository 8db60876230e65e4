"""Valid measurements are added up; whatever a client or the network alters is refused."""

import secrets
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from shuffle_plugins.secure_aggregation.prio3 import (
    Prio3Count,
    Prio3Histogram,
    Prio3MultihotCountVec,
    Prio3Sum,
    Prio3SumVec,
    Prio3SumVecWithMultiproof,
    VerificationError,
)
from shuffle_plugins.secure_aggregation.prio3.circuits import (
    CountCircuit,
    HistogramCircuit,
    MultihotCountVecCircuit,
    SumCircuit,
    SumVecCircuit,
    best_chunk_length,
)
from shuffle_plugins.secure_aggregation.prio3.field import FIELD64, FIELD128
from shuffle_plugins.secure_aggregation.prio3.prio3 import SEED_SIZE

CONTEXT = b"round 7"
KEY = secrets.token_bytes(32)
random = np.random.default_rng()


def verified(prio3, report, *, contexts=None, keys=None, nonces=None):
    """The output shares of a report after all steps; each aggregator may believe in something else."""
    everyone = range(prio3.shares)
    contexts, keys = contexts or [CONTEXT] * prio3.shares, keys or [KEY] * prio3.shares
    nonces = nonces or [report.nonce] * prio3.shares
    started = [
        prio3.verify_init(
            verify_key=keys[j],
            context=contexts[j],
            aggregator=j,
            nonce=nonces[j],
            public_share=report.public_share,
            input_share=report.input_shares[j],
        )
        for j in everyone
    ]
    message = prio3.verifier_shares_to_message([share for _, share in started], context=contexts[0])
    return [prio3.verify_next(state, message) for state, _ in started]


def total(prio3, measurements):
    sums = [prio3.agg_init() for _ in range(prio3.shares)]
    for measurement in measurements:
        outputs = verified(prio3, prio3.shard(measurement, context=CONTEXT))
        sums = [prio3.agg_update(*pair) for pair in zip(sums, outputs, strict=True)]
    encoded = [prio3.encode_agg_share(share) for share in sums]
    return prio3.unshard(encoded, num_measurements=len(measurements))


def shared(prio3, encoded):
    """A report of a client that proves an encoding of its own making as well as it can."""
    seeds = [secrets.token_bytes(SEED_SIZE) for _ in range(prio3.rand_size // SEED_SIZE)]
    vector = prio3.field.from_integers(encoded)
    return prio3._shard_encoded(vector, context=CONTEXT, nonce=secrets.token_bytes(16), seeds=seeds)


def flipped(message, place):
    place %= len(message)
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize("variant", [Prio3SumVec, Prio3SumVecWithMultiproof])
@pytest.mark.parametrize("largest", [1, 2, 12, 1000, 2**14 - 1, 2**62])
def test_sums_of_vectors(variant, largest, shares):
    prio3 = variant(length=9, max_measurement=largest, shares=shares)
    vectors = random.integers(0, largest, (min(3, 2**63 // largest - 1), 9), endpoint=True)
    vectors[0, :2] = 0, largest
    assert np.array_equal(total(prio3, vectors), vectors.sum(0))


def test_the_encoding_of_every_integer_of_a_range():
    """Also where the largest is not one less than a power of two, and some integers have two encodings."""
    for largest in range(1, 20):
        valid = SumVecCircuit(FIELD128, length=largest + 1, max_measurement=largest)
        encoded = valid.encode(np.arange(largest + 1))
        assert set(FIELD128.to_integers(encoded)) <= {0, 1}
        assert FIELD128.to_integers(valid.truncate(encoded)) == list(range(largest + 1))
        weights = FIELD128.to_integers(valid._weights)
        assert sum(weights) == largest
        assert min(weights) >= 0


@pytest.mark.parametrize("length", [1, 2, 10, 85_820])
def test_the_chunk_length_makes_the_proof_shortest(length):
    def proof(chunk):
        return HistogramCircuit(FIELD128, length=length, chunk_length=chunk).proof_length

    assert proof(best_chunk_length(length)) == min(proof(chunk) for chunk in range(1, min(length, 900) + 1))


@pytest.mark.parametrize(
    ("prio3", "encoded"),
    [
        (Prio3Count(), [2]),
        (Prio3Count(), [-1]),
        (Prio3Sum(max_measurement=5), [2, 0, 0]),
        (Prio3Sum(max_measurement=5), [0, 0, -1]),
        (Prio3SumVec(length=3, max_measurement=3), [0, 0, 2, 0, 0, 0]),
        (Prio3SumVec(length=3, max_measurement=3), [0, 0, 0, 0, 0, -1]),
        (Prio3SumVec(length=3, max_measurement=3), [2**100, 0, 0, 0, 0, 0]),
        (Prio3SumVec(length=3, max_measurement=3), [2, -1, 0, 0, 0, 0]),
        (Prio3SumVecWithMultiproof(length=3, max_measurement=3), [0, 0, 2, 0, 0, 0]),
        (Prio3SumVecWithMultiproof(length=3, max_measurement=3), [2**40, 0, 0, 0, 0, 0]),
        (Prio3Histogram(length=4), [1, 0, 0, 1]),
        (Prio3Histogram(length=4), [0, 0, 0, 0]),
        (Prio3Histogram(length=4), [2, -1, 0, 0]),
        (Prio3MultihotCountVec(length=3, max_weight=1), [1, 1, 0, 1]),
        (Prio3MultihotCountVec(length=3, max_weight=1), [1, 1, 0, 2]),
        (Prio3MultihotCountVec(length=3, max_weight=1), [1, 0, 0, 0]),
    ],
)
def test_a_count_out_of_range_is_refused(prio3, encoded):
    with pytest.raises(VerificationError, match="does not hold"):
        verified(prio3, shared(prio3, encoded))


def test_a_client_of_the_same_size_and_another_bound_is_refused_by_its_context_alone():
    """The draft's proofs do not name the bound. Whoever runs the protocol puts it into the context."""
    client, aggregators = (Prio3SumVec(length=2, max_measurement=most) for most in (15, 9))
    report = client.shard([15, 15], context=CONTEXT)
    outputs = verified(aggregators, report)
    sums = [aggregators.encode_agg_share(share) for share in outputs]
    assert aggregators.unshard(sums, num_measurements=1).tolist() == [9, 9]  # never above the bound
    with pytest.raises(VerificationError):
        verified(aggregators, report, contexts=[b"round 7, bound 9"] * 2)


VARIANTS = {
    "sum": (Prio3Sum(max_measurement=9, shares=3), 4),
    "vectors": (Prio3SumVec(length=5, max_measurement=9, shares=3), [0, 1, 2, 9, 4]),
    "several proofs": (Prio3SumVecWithMultiproof(length=5, max_measurement=9), [0, 1, 2, 9, 4]),
    "histogram": (Prio3Histogram(length=5), 2),
    "multihot": (Prio3MultihotCountVec(length=5, max_weight=2), [0, 1, 0, 0, 1]),
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def honest(request):
    """(Prio3, an honest report)."""
    prio3, measurement = request.param
    return prio3, prio3.shard(measurement, context=CONTEXT)


def alterations(prio3, report, other):
    """What somebody on the way could make of a report: arguments of ``verified``."""
    shares, last = report.input_shares, prio3.shares - 1

    def cut_and_flipped(message, places):
        altered = [message[:-1], message + b"\0", *(flipped(message, place) for place in places)]
        return [each for each in altered if each != message]

    for j, share in enumerate(shares):
        places = {0, len(share) // 2, -1, *random.integers(0, len(share), 8).tolist()}
        for altered in cut_and_flipped(share, places):
            yield {"report": replace(report, input_shares=(*shares[:j], altered, *shares[j + 1 :]))}
    for altered in cut_and_flipped(report.public_share, range(0, prio3.public_share_size, 7)):
        yield {"report": replace(report, public_share=altered)}
    yield {"report": replace(report, nonce=report.nonce[:-1])}
    yield {"report": replace(report, input_shares=(shares[0], *other.input_shares[1:]))}
    if prio3.shares == 3:
        yield {"report": replace(report, input_shares=(shares[0], shares[2], shares[1]))}
    yield {"contexts": [CONTEXT] * last + [b"round 8"]}
    yield {"contexts": [b"round 8"] * prio3.shares}
    yield {"keys": [KEY] * last + [secrets.token_bytes(32)]}
    yield {"nonces": [report.nonce] * last + [secrets.token_bytes(16)]}
    if prio3.public_share_size:
        yield {"nonces": [secrets.token_bytes(16)] * prio3.shares}


def test_whatever_is_altered_is_refused(honest):
    prio3, report = honest
    measurement = next(measurement for known, measurement in VARIANTS.values() if known is prio3)
    for altered in alterations(prio3, report, prio3.shard(measurement, context=CONTEXT)):
        with pytest.raises(VerificationError):
            verified(prio3, **({"report": report} | altered))
    assert verified(prio3, report)


def test_messages_of_another_length_are_refused(honest):
    prio3, report = honest
    asked = {
        "context": CONTEXT,
        "aggregator": 0,
        "nonce": report.nonce,
        "public_share": report.public_share,
        "input_share": report.input_shares[0],
    }
    state, share = prio3.verify_init(verify_key=KEY, **asked)
    for other in (share[:-1], share + b"\0"):
        with pytest.raises(VerificationError, match="bytes, not"):
            prio3.verifier_shares_to_message([other] * prio3.shares, context=CONTEXT)
    with pytest.raises(VerificationError, match="verifier shares"):
        prio3.verifier_shares_to_message([share], context=CONTEXT)
    with pytest.raises(VerificationError, match="joint randomness"):
        prio3.verify_next(state, b"x")
    with pytest.raises(ValueError, match="verify_key"):
        prio3.verify_init(verify_key=KEY[:-1], **asked)


def test_elements_that_are_not_below_the_prime_are_refused(honest):
    prio3, report = honest
    size = prio3.field.encoded_size
    leader = b"\xff" * size + report.input_shares[0][size:]
    with pytest.raises(VerificationError, match="below the prime"):
        verified(prio3, replace(report, input_shares=(leader, *report.input_shares[1:])))


def test_sums_over_different_clients_do_not_fit_together():
    prio3 = Prio3SumVec(length=4, max_measurement=9)
    outputs = [verified(prio3, prio3.shard([1, 2, 3, 4], context=CONTEXT)) for _ in range(3)]
    first = reduce(prio3.agg_update, [output[0] for output in outputs])
    second = reduce(prio3.agg_update, [output[1] for output in outputs[:2]])
    with pytest.raises(ValueError, match="do not add up"):
        prio3.unshard([prio3.encode_agg_share(share) for share in (first, second)], num_measurements=3)
    with pytest.raises(ValueError, match="aggregate shares are not 2"):
        prio3.unshard([prio3.encode_agg_share(first)], num_measurements=3)


@pytest.mark.parametrize(
    ("valid", "one", "other"),
    [
        (CountCircuit(FIELD64), 0, 1),
        (SumCircuit(FIELD64, max_measurement=11), 3, 11),
        (SumVecCircuit(FIELD128, length=4, max_measurement=11), [0, 1, 2, 3], [11, 5, 0, 9]),
        (SumVecCircuit(FIELD64, length=4, max_measurement=11, chunk_length=2), [0, 1, 2, 3], [11, 5, 0, 9]),
        (HistogramCircuit(FIELD128, length=7), 0, 6),
        (MultihotCountVecCircuit(FIELD128, length=7, max_weight=4), [0] * 7, [1, 1, 0, 0, 0, 1, 1]),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "field") else "",
)
def test_what_aggregators_see_of_a_proof_says_nothing(valid, one, other):
    """Zero knowledge, exactly: whatever is random but for the prover's own randomness, there is for each
    proof of one measurement one proof of the other with the same verifier. The prover draws both alike."""
    field = valid.field

    def drawn(count):
        return field.from_integers([secrets.randbelow(field.modulus) for _ in range(count)])

    def verifier(encoded, seeds):
        proof = valid.prove(encoded, seeds, joint)
        return valid.query(encoded, proof, query, joint, shares=1)

    joint, query = drawn(valid.joint_randomness_length), drawn(valid.query_randomness_length)
    first, second = valid.encode(one), valid.encode(other)
    seeds = drawn(valid.arity)
    seen = verifier(first, seeds)
    assert valid.decide(seen)
    nothing = field.zeros(len(seeds))
    wires = [
        field.weigh_rows(
            valid._wires(encoded, nothing, joint, shares=1),
            weights := field.evaluation_weights(field.to_integers(query[-1:])[0], valid.wire_length),
        )
        for encoded in (first, second)
    ]
    difference = field.to_integers(field.subtract(*wires))
    scale = field.inverse(field.to_integers(weights[:1])[0])
    moved = field.add(seeds, field.from_integers([x * scale for x in difference]))
    assert np.array_equal(verifier(second, moved), seen)
