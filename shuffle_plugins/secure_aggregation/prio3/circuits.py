"""Validity circuits: which vectors of field elements are the encoding of a permitted measurement.

A circuit is given by its calls of one gadget, a polynomial of degree two in its input wires, and linear
functions before and after the calls. Aggregators evaluate it on shares. Source: draft-irtf-cfrg-vdaf-20,
sections 7.3.2 (circuits), 7.4 (variants) and appendix A (gadgets). The draft's names lack "Circuit".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from shuffle_plugins.secure_aggregation.prio3.field import FieldVector, PrimeField, kernels

Measurement = TypeVar("Measurement")
AggregateResult = TypeVar("AggregateResult")


class ValidityCircuit(ABC, Generic[Measurement, AggregateResult]):
    """A validity circuit: the encoding of the measurements that it accepts, and proofs that it accepts them.

    Attributes:
        measurement_length: Elements of an encoded measurement (the draft's ``MEAS_LEN``).
        joint_randomness_length: Elements of randomness that the client cannot choose; 0 if it takes none.
        output_length: Elements of what is added up over clients.
        evaluation_length: Values that are all 0 exactly if the measurement is valid.
        calls: Calls of the gadget.
        arity: Input wires of the gadget.
        largest: The most that a client adds to a coordinate of the sum.
    """

    field: PrimeField
    measurement_length: int
    joint_randomness_length: int
    output_length: int
    evaluation_length: int
    calls: int
    arity: int
    largest = 1
    one_number = False  # whether measurements are numbers, not vectors

    @property
    def wire_length(self) -> int:
        """Values of a wire polynomial: a random one, one of each call, and zeros up to a power of two."""
        return 1 << self.calls.bit_length()

    @abstractmethod
    def encode(self, measurement: Measurement) -> FieldVector:
        """A measurement as field elements."""

    @abstractmethod
    def fill_wires(
        self, encoded: FieldVector, joint_randomness: FieldVector, shares: int, wires: FieldVector
    ) -> None:
        """Write the gadget's inputs on an encoded measurement, or on one of so many shares of it.

        The input of call i is written at place 1 + i of each of ``arity`` wires of ``wire_length`` elements
        after each other; the rest is left as it is.
        """

    @abstractmethod
    def outputs(self, encoded: FieldVector, gadget_outputs: FieldVector, shares: int) -> FieldVector:
        """The circuit's ``evaluation_length`` values, from what the gadget's calls returned."""

    def factors(self, wires: FieldVector, length: int) -> FieldVector:
        """Pairs of wires whose products add up to the gadget's output. ``length`` elements are one wire."""
        return wires

    def truncate(self, encoded: FieldVector) -> FieldVector:
        """What is added up over clients: ``output_length`` linear functions of the encoding."""
        return encoded[: self.output_length]

    def decode(self, total: FieldVector, num_measurements: int) -> AggregateResult:
        """The sum over clients."""
        counts = self._checked_total(total, num_measurements)
        return cast(AggregateResult, int(counts[0]) if self.one_number else counts)

    @property
    def query_randomness_length(self) -> int:
        """Random elements that a query takes; a proof takes one for each wire."""
        return 1 + (self.evaluation_length if self.evaluation_length > 1 else 0)

    @property
    def proof_length(self) -> int:
        """Elements of a proof: one for each wire, and the values of a polynomial of twice a wire's degree."""
        return self.arity + 2 * self.wire_length - 1

    @property
    def verifier_length(self) -> int:
        """Elements of a verifier: the circuit's output, each wire's value, and the gadget's."""
        return 1 + self.arity + 1

    def prove(
        self, encoded: FieldVector, prove_randomness: FieldVector, joint_randomness: FieldVector
    ) -> FieldVector:
        """The proof that an encoded measurement is valid."""
        length = self.wire_length
        wires = self._wires(encoded, prove_randomness, joint_randomness, shares=1)
        polynomial = self.field.sum_of_products(self.factors(wires, length), length)
        return np.concatenate([prove_randomness, polynomial[:-1]])

    def query(
        self,
        encoded: FieldVector,
        proof: FieldVector,
        query_randomness: FieldVector,
        joint_randomness: FieldVector,
        *,
        shares: int,
    ) -> FieldVector:
        """A share of the verifier, from shares of measurement and proof."""
        field, length = self.field, self.wire_length
        wires = self._wires(encoded, proof[: self.arity], joint_randomness, shares=shares)
        polynomial = self._completed(proof[self.arity :])
        called = np.ascontiguousarray(polynomial[2 : 2 * self.calls + 1 : 2])
        output = self.outputs(encoded, called, shares)
        if self.evaluation_length > 1:
            output = field.weigh_rows(output, query_randomness[:-1])
        point = field.to_integers(query_randomness[-1:])[0]
        return np.concatenate(
            [
                output,
                field.weigh_rows(wires, field.evaluation_weights(point, length)),
                field.weigh_rows(polynomial, field.evaluation_weights(point, 2 * length)),
            ]
        )

    def decide(self, verifier: FieldVector) -> bool:
        """Whether the verifier, the sum of all its shares, is that of a valid measurement."""
        output, wires, gadget = verifier[:1], verifier[1:-1], verifier[-1:]
        factors = self.factors(wires, 1)
        products = self.field.multiply(factors[::2].copy(), factors[1::2].copy())
        return not output.any() and [self.field.total(products)] == self.field.to_integers(gadget)

    def _wires(
        self, encoded: FieldVector, seeds: FieldVector, joint_randomness: FieldVector, *, shares: int
    ) -> FieldVector:
        wires = self.field.zeros(self.arity * self.wire_length)
        wires[:: self.wire_length] = seeds
        self.fill_wires(encoded, joint_randomness, shares, wires)
        return wires

    def _completed(self, values: FieldVector) -> FieldVector:
        """A polynomial's values at all n roots of unity, its last coefficient being 0, from all but one."""
        # That coefficient is, but for a factor, the sum of value k times root**k.
        field, n = self.field, len(values) + 1
        root, powers = field.root(n), [1]
        for _ in range(n - 2):
            powers.append(powers[-1] * root % field.modulus)
        partial = field.total(field.multiply(values, field.from_integers(powers)))
        return np.concatenate([values, field.from_integers([-partial * root])])

    def _checked_total(self, total: FieldVector, num_measurements: int) -> NDArray[np.int64]:
        if num_measurements < 1:
            raise ValueError(f"num_measurements is {num_measurements}; a sum is of at least one")
        if num_measurements * self.largest >= 2**63:
            raise ValueError(
                f"sums of {num_measurements} measurements up to {self.largest} do not fit 63 bits"
            )
        try:
            counts = self.field.to_words(total)
        except ValueError:
            counts = None
        if counts is None or (counts > num_measurements * self.largest).any():
            raise ValueError(
                f"the aggregate shares do not add up to a sum of {num_measurements} valid measurements: "
                "aggregators added up different reports, or one of them altered its share"
            )
        return counts


class CountCircuit(ValidityCircuit[int, int]):
    """The measurement is 0 or 1. One call of a multiplication, x·x - x = 0."""

    one_number = True

    def __init__(self, field: PrimeField) -> None:
        self.field = field
        self.measurement_length = self.output_length = self.evaluation_length = self.calls = 1
        self.joint_randomness_length = 0
        self.arity = 2

    @override
    def encode(self, measurement: int) -> FieldVector:
        if measurement not in (0, 1):
            raise ValueError(f"a count is 0 or 1, not {measurement}")
        return self.field.from_integers([int(measurement)])

    @override
    def fill_wires(
        self, encoded: FieldVector, joint_randomness: FieldVector, shares: int, wires: FieldVector
    ) -> None:
        wires[1 :: self.wire_length] = encoded

    @override
    def outputs(self, encoded: FieldVector, gadget_outputs: FieldVector, shares: int) -> FieldVector:
        return self.field.subtract(gadget_outputs, encoded)


class SumCircuit(ValidityCircuit[int, int]):
    """The measurement is an integer from 0 to ``max_measurement``. Every bit is checked by its own call."""

    one_number = True

    def __init__(self, field: PrimeField, *, max_measurement: int) -> None:
        self.field = field
        self.largest = max_measurement
        self._weights = _bit_weights(field, max_measurement)
        self.measurement_length = self.evaluation_length = self.calls = len(self._weights)
        self.joint_randomness_length, self.output_length, self.arity = 0, 1, 1

    @override
    def encode(self, measurement: int) -> FieldVector:
        return _encode_bits(self.field, [measurement], self.largest)

    @override
    def fill_wires(
        self, encoded: FieldVector, joint_randomness: FieldVector, shares: int, wires: FieldVector
    ) -> None:
        wires[1 : 1 + self.calls] = encoded

    @override
    def outputs(self, encoded: FieldVector, gadget_outputs: FieldVector, shares: int) -> FieldVector:
        return gadget_outputs

    @override
    def factors(self, wires: FieldVector, length: int) -> FieldVector:
        one = self.field.from_integers([1])
        return np.concatenate([wires, self.field.subtract(wires, one.repeat(len(wires), axis=0))])

    @override
    def truncate(self, encoded: FieldVector) -> FieldVector:
        return self.field.weigh_rows(encoded, self._weights)


class _BitVector(ValidityCircuit[Measurement, NDArray[np.int64]]):
    """The base of circuits that check that every element of the encoding is a bit.

    They add up r·x·(x - 1) over the bits x, with powers of joint randomness for r, in calls of the gadget
    ParallelSum(Mul) on ``chunk_length`` bits each; by default as many as make the proof shortest.
    """

    def __init__(self, field: PrimeField, *, measurement_length: int, chunk_length: int | None) -> None:
        chunk = best_chunk_length(measurement_length) if chunk_length is None else chunk_length
        if chunk < 1:
            raise ValueError(f"chunk_length is {chunk}; it is at least 1")
        self.field = field
        self.chunk_length = chunk
        self.measurement_length = measurement_length
        self.calls = self.joint_randomness_length = -(-measurement_length // chunk)
        self.arity = 2 * chunk
        self.evaluation_length = 2

    @override
    def fill_wires(
        self, encoded: FieldVector, joint_randomness: FieldVector, shares: int, wires: FieldVector
    ) -> None:
        one = self.field.from_integers([self.field.inverse(shares)])  # a share of it
        kernels().bit_check_wires(encoded, joint_randomness, one, self.wire_length, wires)

    @override
    def outputs(self, encoded: FieldVector, gadget_outputs: FieldVector, shares: int) -> FieldVector:
        return self.field.from_integers(
            [self.field.total(gadget_outputs), *self._further_checks(encoded, shares)]
        )

    def _further_checks(self, encoded: FieldVector, shares: int) -> Sequence[int]:
        return ()


class SumVecCircuit(_BitVector[ArrayLike]):
    """The measurement is a vector of integers from 0 to ``max_measurement``."""

    def __init__(
        self, field: PrimeField, *, length: int, max_measurement: int, chunk_length: int | None = None
    ) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; a vector has at least one entry")
        self._weights = _bit_weights(field, max_measurement)
        super().__init__(field, measurement_length=length * len(self._weights), chunk_length=chunk_length)
        self.largest = max_measurement
        self.evaluation_length = 1
        self.output_length = length

    @override
    def encode(self, measurement: ArrayLike) -> FieldVector:
        values = np.asarray(measurement)
        if values.shape != (self.output_length,):
            raise ValueError(f"the measurement has shape {values.shape}, not ({self.output_length},)")
        return _encode_bits(self.field, values, self.largest)

    @override
    def truncate(self, encoded: FieldVector) -> FieldVector:
        return self.field.weigh_rows(encoded, self._weights)


class HistogramCircuit(_BitVector[int]):
    """The measurement is one of ``length`` buckets: a vector of bits of which one is set."""

    def __init__(self, field: PrimeField, *, length: int, chunk_length: int | None = None) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; a histogram has at least one bucket")
        super().__init__(field, measurement_length=length, chunk_length=chunk_length)
        self.output_length = length

    @override
    def encode(self, measurement: int) -> FieldVector:
        if not 0 <= measurement < self.output_length:
            raise ValueError(f"bucket {measurement} is not one of 0 to {self.output_length - 1}")
        return self.field.from_words(np.arange(self.output_length) == measurement)

    def _further_checks(self, encoded: FieldVector, shares: int) -> Sequence[int]:
        return [self.field.total(encoded) - self.field.inverse(shares)]

    @override
    def decode(self, total: FieldVector, num_measurements: int) -> NDArray[np.int64]:
        counts = self._checked_total(total, num_measurements)
        if counts.sum() != num_measurements:
            raise ValueError(f"the buckets hold {counts.sum()} measurements and not {num_measurements}")
        return counts


class MultihotCountVecCircuit(_BitVector[ArrayLike]):
    """The measurement is a vector of bits of which at most ``max_weight`` are set."""

    def __init__(
        self, field: PrimeField, *, length: int, max_weight: int, chunk_length: int | None = None
    ) -> None:
        if length < 1 or not 1 <= max_weight <= length:
            raise ValueError(f"length {length} is at least 1, and max_weight {max_weight} from 1 to length")
        self._weights = _bit_weights(field, max_weight)
        super().__init__(field, measurement_length=length + len(self._weights), chunk_length=chunk_length)
        self.max_weight = max_weight
        self.output_length = length

    @override
    def encode(self, measurement: ArrayLike) -> FieldVector:
        bits = np.asarray(measurement)
        if bits.shape != (self.output_length,) or not np.isin(bits, (0, 1)).all():
            raise ValueError(f"the measurement is not a vector of {self.output_length} bits")
        weight = _encode_bits(self.field, [int(bits.sum())], self.max_weight)
        return np.concatenate([self.field.from_words(bits), weight])

    def _further_checks(self, encoded: FieldVector, shares: int) -> Sequence[int]:
        reported = self.field.weigh_rows(encoded[self.output_length :], self._weights)
        return [self.field.total(self.truncate(encoded)) - self.field.total(reported)]


def best_chunk_length(measurement_length: int) -> int:
    """The chunk length, near the square root of the measurement's, that makes the proof shortest."""

    def proof(wire_length: int) -> tuple[int, int]:
        chunk = -(-measurement_length // (wire_length - 1))
        return 2 * chunk + 2 * wire_length - 1, chunk

    return min(proof(1 << bits) for bits in range(1, measurement_length.bit_length() + 2))[1]


def _bit_weights(field: PrimeField, largest: int) -> FieldVector:
    """What the bits of an encoded integer stand for: powers of two, and last what is left to ``largest``."""
    if not 1 <= largest <= 2**62:  # sums and their intermediate values stay 64-bit integers
        raise ValueError(f"the largest measurement is {largest}; it is from 1 to 2**62")
    powers = [1 << i for i in range(largest.bit_length() - 1)]
    return field.from_integers([*powers, largest - sum(powers)])


def _encode_bits(field: PrimeField, values: Any, largest: int) -> FieldVector:
    """Integers from 0 to ``largest`` as bits, each integer's after each other."""
    integers = np.asarray(values)
    if integers.dtype.kind not in "iub":
        raise ValueError(f"measurements are integers, not of type {integers.dtype}")
    if integers.size and (integers.min() < 0 or integers.max() > largest):
        raise ValueError(f"a measurement is not from 0 to {largest}")
    integers = integers.astype(np.int64)
    powers = largest.bit_length() - 1
    beyond = integers > (1 << powers) - 1
    rest = integers - beyond * (largest - (1 << powers) + 1)
    bits = rest[:, None] >> np.arange(powers) & 1
    return field.from_words(np.concatenate([bits, beyond[:, None]], axis=1))
