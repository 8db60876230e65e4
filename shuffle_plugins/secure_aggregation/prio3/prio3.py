"""Prio3: sums of secret-shared vectors with fully linear proofs that each satisfies a validity circuit.

Source: draft-irtf-cfrg-vdaf-20, sections 6.2.1 (XofTurboShake128; RFC 9861) and 7 (wire version 18). Steps
and messages have the draft's names, and what is sent is ``bytes`` in its encoding. Proofs: Boneh et al. 2019,
"Zero-Knowledge Proofs on Secret-Shared Data via Fully Linear PCPs", Theorem 4.3.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from hmac import compare_digest
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shuffle_plugins.core.extras import how_to_install
from shuffle_plugins.secure_aggregation.prio3.circuits import (
    AggregateResult,
    CountCircuit,
    HistogramCircuit,
    Measurement,
    MultihotCountVecCircuit,
    SumCircuit,
    SumVecCircuit,
    ValidityCircuit,
)
from shuffle_plugins.secure_aggregation.prio3.field import FIELD64, FIELD128, FieldVector, PrimeField

SEED_SIZE = 32
"""Bytes of a seed."""


def _stream(seed: bytes, tag: bytes, binder: bytes) -> Any:
    try:
        from Crypto.Hash import TurboSHAKE128
    except ImportError as error:
        raise ImportError(
            f"Prio3 needs pycryptodome 3.20 or later: {how_to_install('secure-aggregation')}"
        ) from error
    stream = TurboSHAKE128.new(domain=1)
    stream.update(len(tag).to_bytes(2, "little") + tag + len(seed).to_bytes(1, "little") + seed)
    stream.update(binder)
    return stream


def expand_into_vector(
    field: PrimeField, seed: bytes, *, tag: bytes, binder: bytes, length: int
) -> FieldVector:
    """``length`` uniform field elements; random words that are not below the prime are skipped."""
    stream = _stream(seed, tag, binder)
    vector = field.zeros(0)
    while missing := length - len(vector):
        words = np.frombuffer(stream.read(missing * field.encoded_size), dtype="<u8").astype(np.uint64)
        drawn = words.reshape(-1, field.limbs) if field.limbs > 1 else words
        valid = field.valid(drawn)
        drawn = drawn if valid.all() else drawn[valid]
        vector = np.concatenate([vector, drawn]) if len(vector) else drawn
    return vector


class VerificationError(ValueError):
    """A report whose proof is refused: nobody may add any share of it to a sum."""


NONCE_SIZE = 16
"""Bytes of a report's nonce."""


class _Usage(IntEnum):
    MEASUREMENT_SHARE = 1
    PROOF_SHARE = 2
    JOINT_RANDOMNESS = 3
    PROVE_RANDOMNESS = 4
    QUERY_RANDOMNESS = 5
    JOINT_RANDOMNESS_SEED = 6
    JOINT_RANDOMNESS_PART = 7


@dataclass(frozen=True)
class Report:
    """What a client sends: to all aggregators a nonce and a public share, to each an input share, secret from
    the others, a short seed but for the first's, the leader's."""

    nonce: bytes
    public_share: bytes
    input_shares: tuple[bytes, ...]


@dataclass(frozen=True)
class VerifyState:
    """What an aggregator keeps of a report until its proof is decided.

    ``output_share`` is what it then adds to its sum; all must have found out the same seed.
    """

    output_share: FieldVector
    joint_randomness_seed: bytes


class _Received(NamedTuple):
    """Shares of a measurement and its proofs, what to keep, and the own part of the joint randomness."""

    encoded: FieldVector
    proofs: FieldVector
    state: VerifyState
    part: bytes


class Prio3(Generic[Measurement, AggregateResult]):
    """Sharing, verification and aggregation of measurements that a circuit accepts.

    A client calls :meth:`shard`. Each aggregator calls :meth:`verify_init` and sends its verifier share to
    one of them, who calls :meth:`verifier_shares_to_message`. Each calls :meth:`verify_next` with that
    message, and :meth:`agg_update` with what it returns. :meth:`unshard` adds up the aggregate shares.
    Every ``context`` names the application and the round; a report for one is refused in any other.

    Args:
        shares: Aggregators, from 2 to 255; the first is the leader, the others are helpers.
        proofs: How often each measurement is proven; more proofs let a small field do.
        measurement: What the circuit is told of measurements; its ``chunk_length`` shapes the proof, and is
            by default what makes it shortest. All parties use the same.
    """

    algorithm: ClassVar[int]
    """The draft's number of this variant."""
    circuit: ClassVar[Any]
    field: ClassVar[PrimeField] = FIELD128
    fewest_proofs: ClassVar[int] = 1

    def __init__(self, *, shares: int = 2, proofs: int | None = None, **measurement: Any) -> None:
        if not 2 <= shares <= 255:
            raise ValueError(f"Prio3 takes from 2 to 255 shares, not {shares}")
        self.shares, self.proofs = shares, self.fewest_proofs if proofs is None else proofs
        if not self.fewest_proofs <= self.proofs <= 255:
            raise ValueError(
                f"over {self.field.name} this takes from {self.fewest_proofs} to 255 proofs, not {proofs}"
            )
        self.valid: ValidityCircuit[Measurement, AggregateResult] = self.circuit(self.field, **measurement)
        self._joint: bool = self.valid.joint_randomness_length > 0

    @property
    def rand_size(self) -> int:
        """Random bytes that sharing a measurement takes."""
        return self.shares * SEED_SIZE * (2 if self._joint else 1)

    @property
    def public_share_size(self) -> int:
        """Bytes of the public share."""
        return self.shares * SEED_SIZE if self._joint else 0

    def input_share_size(self, aggregator: int) -> int:
        """Bytes of the input share of an aggregator; 0 is the leader."""
        elements = self.valid.measurement_length + self.proofs * self.valid.proof_length
        body = SEED_SIZE if aggregator else elements * self.field.encoded_size
        return body + self._joint * SEED_SIZE

    @property
    def verifier_share_size(self) -> int:
        """Bytes of the verifier share that an aggregator sends for each report."""
        elements = self.proofs * self.valid.verifier_length
        return elements * self.field.encoded_size + self._joint * SEED_SIZE

    @property
    def verifier_message_size(self) -> int:
        """Bytes of the message that aggregators finish the verification of a report with."""
        return self._joint * SEED_SIZE

    @property
    def agg_share_size(self) -> int:
        """Bytes of an aggregate share."""
        return self.valid.output_length * self.field.encoded_size

    def shard(
        self,
        measurement: Measurement,
        *,
        context: bytes,
        nonce: bytes | None = None,
        rand: bytes | None = None,
    ) -> Report:
        """A measurement as shares with a proof.

        The context has at most 65,527 bytes. ``nonce`` and ``rand``, for test vectors, are by default fresh.
        """
        nonce = secrets.token_bytes(NONCE_SIZE) if nonce is None else _sized("nonce", nonce, NONCE_SIZE)
        rand = secrets.token_bytes(self.rand_size) if rand is None else _sized("rand", rand, self.rand_size)
        seeds = [rand[i : i + SEED_SIZE] for i in range(0, len(rand), SEED_SIZE)]
        encoded = self.valid.encode(measurement)
        return self._shard_encoded(encoded, context=context, nonce=nonce, seeds=seeds)

    def _shard_encoded(
        self, encoded: FieldVector, *, context: bytes, nonce: bytes, seeds: Sequence[bytes]
    ) -> Report:
        helpers = range(1, self.shares)
        stride = 2 if self._joint else 1
        shares = [b"", *seeds[: stride * len(helpers) : stride]]
        blinds = [seeds[-2], *seeds[1 : stride * len(helpers) : stride]] if self._joint else []
        leader, parts = encoded, [b""] * self.shares
        for j in helpers:
            share = self._helper_measurement_share(context, j, shares[j])
            leader = self.field.subtract(leader, share)
            if self._joint:
                parts[j] = self._joint_randomness_part(context, j, blinds[j], share, nonce)
        joint: Sequence[FieldVector] = [self.field.zeros(0)] * self.proofs
        if self._joint:
            parts[0] = self._joint_randomness_part(context, 0, blinds[0], leader, nonce)
            joint = self._joint_randomness(context, self._joint_randomness_seed(context, parts))
        prove = self._expand(
            context, _Usage.PROVE_RANDOMNESS, seeds[-1], bytes([self.proofs]), self.proofs * self.valid.arity
        )
        proofs = np.concatenate(
            [
                self.valid.prove(encoded, randomness, joint[i])
                for i, randomness in enumerate(np.split(prove, self.proofs))
            ]
        )
        for j in helpers:
            proofs = self.field.subtract(proofs, self._helper_proofs_share(context, j, shares[j]))
        blinds = blinds or [b""] * self.shares
        shares[0] = self.field.encode(leader) + self.field.encode(proofs)
        inputs = tuple(share + blind for share, blind in zip(shares, blinds, strict=True))
        return Report(nonce=nonce, public_share=b"".join(parts), input_shares=inputs)

    def verify_init(
        self,
        *,
        verify_key: bytes,
        context: bytes,
        aggregator: int,
        nonce: bytes,
        public_share: bytes,
        input_share: bytes,
    ) -> tuple[VerifyState, bytes]:
        """Start to verify a report: what to keep, and the verifier share to send.

        Args:
            verify_key: :data:`SEED_SIZE` random bytes that the aggregators share. They are fixed before
                the first report is made, and clients never learn them: a client that knew them could prove
                anything.
            aggregator: Which one this is; 0 is the leader.
        """
        _sized("verify_key", verify_key, SEED_SIZE)
        received = self._received(context, aggregator, nonce, public_share, input_share)
        joint = [self.field.zeros(0)] * self.proofs
        if self._joint:
            joint = self._joint_randomness(context, received.state.joint_randomness_seed)
        query = self._expand(
            context,
            _Usage.QUERY_RANDOMNESS,
            verify_key,
            bytes([self.proofs]) + nonce,
            self.proofs * self.valid.query_randomness_length,
        )
        try:
            verifiers = [
                self.valid.query(received.encoded, proof, randomness, joint[i], shares=self.shares)
                for i, (proof, randomness) in enumerate(
                    zip(np.split(received.proofs, self.proofs), np.split(query, self.proofs), strict=True)
                )
            ]
        except ValueError as error:
            raise VerificationError(f"a report is refused: {error}") from error
        share = self.field.encode(np.concatenate(verifiers)) + received.part
        return received.state, share

    def verify_state(
        self, *, context: bytes, aggregator: int, nonce: bytes, public_share: bytes, input_share: bytes
    ) -> VerifyState:
        """What :meth:`verify_init` returned to keep, for an aggregator that kept the report in its place."""
        return self._received(context, aggregator, nonce, public_share, input_share).state

    def _received(
        self, context: bytes, aggregator: int, nonce: bytes, public_share: bytes, input_share: bytes
    ) -> _Received:
        if not 0 <= aggregator < self.shares:
            raise ValueError(f"aggregator {aggregator} is not one of 0 to {self.shares - 1}")
        try:
            _sized("nonce", nonce, NONCE_SIZE)
            _sized("public share", public_share, self.public_share_size)
            _sized("input share", input_share, self.input_share_size(aggregator))
            encoded, proofs, blind = self._expand_input_share(context, aggregator, input_share)
        except ValueError as error:
            raise VerificationError(f"a report is refused: {error}") from error
        seed = part = b""
        if self._joint:
            part = self._joint_randomness_part(context, aggregator, blind, encoded, nonce)
            parts = [public_share[i : i + SEED_SIZE] for i in range(0, self.public_share_size, SEED_SIZE)]
            parts[aggregator] = part
            seed = self._joint_randomness_seed(context, parts)
        return _Received(encoded, proofs, VerifyState(self.valid.truncate(encoded), seed), part)

    def verifier_shares_to_message(self, verifier_shares: Sequence[bytes], *, context: bytes) -> bytes:
        """Decide a proof from all aggregators' verifier shares, in their order; the message for all of them.

        :class:`VerificationError` if the proof is refused, or a share is missing or not of the right form.
        """
        if len(verifier_shares) != self.shares:
            raise VerificationError(f"{len(verifier_shares)} verifier shares are not {self.shares}")
        elements = self.proofs * self.valid.verifier_length
        verifiers, parts = self.field.zeros(elements), []
        for share in verifier_shares:
            try:
                _sized("verifier share", share, self.verifier_share_size)
                body = share[: elements * self.field.encoded_size]
                verifiers = self.field.add(verifiers, self.field.decode(body, count=elements))
            except ValueError as error:
                raise VerificationError(f"a report is refused: {error}") from error
            parts.append(share[len(body) :])
        if not all(self.valid.decide(verifier) for verifier in np.split(verifiers, self.proofs)):
            raise VerificationError("a report is refused: its proof does not hold")
        return self._joint_randomness_seed(context, parts) if self._joint else b""

    def verify_next(self, state: VerifyState, verifier_message: bytes) -> FieldVector:
        """The output share, to be added to this aggregator's sum.

        :class:`VerificationError` if the proof was made with randomness that the client chose.
        """
        if not compare_digest(verifier_message, state.joint_randomness_seed):
            raise VerificationError(
                "a report is refused: its joint randomness is not what its shares determine"
            )
        return state.output_share

    def agg_init(self) -> FieldVector:
        """An aggregate share of no reports."""
        return self.field.zeros(self.valid.output_length)

    def agg_update(self, agg_share: FieldVector, output_share: FieldVector) -> FieldVector:
        """An aggregate share with one more report."""
        return self.field.add(agg_share, output_share)

    def encode_agg_share(self, agg_share: FieldVector) -> bytes:
        """An aggregate share as bytes."""
        return self.field.encode(agg_share)

    def unshard(self, agg_shares: Sequence[bytes], *, num_measurements: int) -> AggregateResult:
        """The sum over clients, from all aggregate shares; a ValueError if so many have no such sum."""
        if len(agg_shares) != self.shares:
            raise ValueError(f"{len(agg_shares)} aggregate shares are not {self.shares}")
        decoded = (self.field.decode(share, count=self.valid.output_length) for share in agg_shares)
        return self.valid.decode(reduce(self.field.add, decoded), num_measurements)

    def _expand_input_share(
        self, context: bytes, aggregator: int, share: bytes
    ) -> tuple[FieldVector, FieldVector, bytes]:
        """(share of the measurement, share of the proofs, blind)."""
        body, blind = (share[:-SEED_SIZE], share[-SEED_SIZE:]) if self._joint else (share, b"")
        if aggregator:
            return (
                self._helper_measurement_share(context, aggregator, body),
                self._helper_proofs_share(context, aggregator, body),
                blind,
            )
        elements = self.valid.measurement_length
        vector = self.field.decode(body, count=elements + self.proofs * self.valid.proof_length)
        return vector[:elements], vector[elements:], blind

    def _helper_measurement_share(self, context: bytes, aggregator: int, seed: bytes) -> FieldVector:
        return self._expand(
            context, _Usage.MEASUREMENT_SHARE, seed, bytes([aggregator]), self.valid.measurement_length
        )

    def _helper_proofs_share(self, context: bytes, aggregator: int, seed: bytes) -> FieldVector:
        binder = bytes([self.proofs, aggregator])
        return self._expand(context, _Usage.PROOF_SHARE, seed, binder, self.proofs * self.valid.proof_length)

    def _joint_randomness_part(
        self, context: bytes, aggregator: int, blind: bytes, share: FieldVector, nonce: bytes
    ) -> bytes:
        binder = bytes([aggregator]) + nonce + self.field.encode(share)
        return self._seed(context, _Usage.JOINT_RANDOMNESS_PART, blind, binder)

    def _joint_randomness_seed(self, context: bytes, parts: Sequence[bytes]) -> bytes:
        return self._seed(context, _Usage.JOINT_RANDOMNESS_SEED, bytes(SEED_SIZE), b"".join(parts))

    def _joint_randomness(self, context: bytes, seed: bytes) -> list[FieldVector]:
        length = self.proofs * self.valid.joint_randomness_length
        vector = self._expand(context, _Usage.JOINT_RANDOMNESS, seed, bytes([self.proofs]), length)
        return np.split(vector, self.proofs)

    def _seed(self, context: bytes, usage: int, seed: bytes, binder: bytes) -> bytes:
        found: bytes = _stream(seed, self._tag(context, usage), binder).read(SEED_SIZE)
        return found

    def _expand(self, context: bytes, usage: int, seed: bytes, binder: bytes, length: int) -> FieldVector:
        tag = self._tag(context, usage)
        return expand_into_vector(self.field, seed, tag=tag, binder=binder, length=length)

    def _tag(self, context: bytes, usage: int) -> bytes:
        if len(context) > 65_527:  # the tag's length is written in two bytes
            raise ValueError(f"a context has at most 65,527 bytes, not {len(context):,}")
        version = bytes([18, 0])  # of the drafts from 18 on
        return version + self.algorithm.to_bytes(4, "big") + usage.to_bytes(2, "big") + context


class Prio3Count(Prio3[int, int]):
    """How many clients answer 1 and not 0."""

    algorithm, circuit, field = 1, CountCircuit, FIELD64


class Prio3Sum(Prio3[int, int]):
    """The sum of integers from 0 to ``max_measurement``."""

    algorithm, circuit, field = 2, SumCircuit, FIELD64


class Prio3SumVec(Prio3[ArrayLike, NDArray[np.int64]]):
    """The sum of vectors of integers from 0 to ``max_measurement``; ``length`` of them each."""

    algorithm, circuit = 3, SumVecCircuit


class Prio3SumVecWithMultiproof(Prio3[ArrayLike, NDArray[np.int64]]):
    """What :class:`Prio3SumVec` computes, with several proofs over Field64: half of the bytes.

    The draft calls this variant experimental, and asks for at least three proofs.
    """

    algorithm, circuit, field = 0xFFFFFFFF, SumVecCircuit, FIELD64
    fewest_proofs = 3


class Prio3Histogram(Prio3[int, NDArray[np.int64]]):
    """How many clients are in each of ``length`` buckets; each is in one."""

    algorithm, circuit = 4, HistogramCircuit


class Prio3MultihotCountVec(Prio3[ArrayLike, NDArray[np.int64]]):
    """The sum of vectors of ``length`` bits of which at most ``max_weight`` are set."""

    algorithm, circuit = 5, MultihotCountVecCircuit


def _sized(name: str, value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(f"the {name} has {len(value)} bytes, not {size}")
    return value
