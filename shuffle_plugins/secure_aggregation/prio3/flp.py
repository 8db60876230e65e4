"""Fully linear proofs: that a secret-shared vector satisfies a validity circuit.

The client proves, aggregators query their shares of vector and proof, and who has all answers decides. The
proof holds a polynomial that takes the gadget's outputs at roots of unity. The answers are the values of that
polynomial and of the wires at one random point, where they must fit; a random value in each wire hides the
vector. Source: draft-irtf-cfrg-vdaf-20, section 7.3; Boneh et al. 2019, "Zero-Knowledge Proofs on
Secret-Shared Data via Fully Linear PCPs", Theorem 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shuffle_plugins.secure_aggregation.prio3.circuits import ValidityCircuit
from shuffle_plugins.secure_aggregation.prio3.field import FieldVector, PrimeField


@dataclass(frozen=True)
class FullyLinearProof:
    """The proof system of one validity circuit."""

    valid: ValidityCircuit[Any, Any]

    @property
    def field(self) -> PrimeField:
        """The field in which the circuit computes and the proof is made."""
        return self.valid.field

    @property
    def prove_randomness_length(self) -> int:
        """Random elements that a proof takes."""
        return self.valid.arity

    @property
    def query_randomness_length(self) -> int:
        """Random elements that a query takes."""
        outputs = self.valid.evaluation_length
        return 1 + (outputs if outputs > 1 else 0)

    @property
    def proof_length(self) -> int:
        """Elements of a proof: one for each wire, and the values of a polynomial of twice a wire's degree."""
        return self.valid.arity + 2 * self.valid.wire_length - 1

    @property
    def verifier_length(self) -> int:
        """Elements of a verifier: the circuit's output, each wire's value, and the gadget's."""
        return 1 + self.valid.arity + 1

    def prove(
        self, encoded: FieldVector, prove_randomness: FieldVector, joint_randomness: FieldVector
    ) -> FieldVector:
        """The proof, ``proof_length`` elements, that an encoded measurement is valid."""
        length = self.valid.wire_length
        wires = self._wires(encoded, prove_randomness, joint_randomness, shares=1)
        polynomial = self.field.sum_of_products(self.valid.factors(wires, length), length)
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
        """A share of the verifier, ``verifier_length`` elements, from shares of measurement and proof.

        Raises:
            ValueError: If the random point is one at which the gadget's outputs would show; this happens with
                a probability of about 2**-50.
        """
        field, valid, length = self.field, self.valid, self.valid.wire_length
        wires = self._wires(encoded, proof[: valid.arity], joint_randomness, shares=shares)
        polynomial = self._completed(proof[valid.arity :])
        called = np.ascontiguousarray(polynomial[2 : 2 * valid.calls + 1 : 2])
        output = valid.outputs(encoded, called, shares)
        if valid.evaluation_length > 1:
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
        factors = self.valid.factors(wires, 1)
        products = self.field.multiply(factors[::2].copy(), factors[1::2].copy())
        return not output.any() and [self.field.total(products)] == self.field.to_integers(gadget)

    def _wires(
        self, encoded: FieldVector, seeds: FieldVector, joint_randomness: FieldVector, *, shares: int
    ) -> FieldVector:
        wires = self.field.zeros(self.valid.arity * self.valid.wire_length)
        wires[:: self.valid.wire_length] = seeds
        self.valid.fill_wires(encoded, joint_randomness, shares, wires)
        return wires

    def _completed(self, values: FieldVector) -> FieldVector:
        """The values of a polynomial at all n roots of unity, its last coefficient being 0, from all but one.

        That coefficient is, but for a factor, the sum of value k times root**k.
        """
        field, n = self.field, len(values) + 1
        root, powers = field.root(n), [1]
        for _ in range(n - 2):
            powers.append(powers[-1] * root % field.modulus)
        partial = field.total(field.multiply(values, field.from_integers(powers)))
        return np.concatenate([values, field.from_integers([-partial * root])])
