"""The compiled arithmetic of Prio3 against Python's integers."""

import io
import random

import numpy as np
import pytest

from shuffle_plugins.secure_aggregation.prio3 import prio3
from shuffle_plugins.secure_aggregation.prio3.field import FIELD64, FIELD128
from shuffle_plugins.secure_aggregation.prio3.prio3 import expand_into_vector

FIELDS = pytest.mark.parametrize("field", [FIELD64, FIELD128], ids=lambda field: field.name)


def pairs(field):
    prime = field.modulus
    edges = {0, 1, 2, prime - 1, prime - 2, prime // 2, 2**32 - 1, 2**32, 2**63, (2**64 - 1) % prime}
    edges |= {(2**64) % prime, (2**64 * (prime >> 64)) % prime, (2**96 - 1) % prime}
    drawn = [(random.randrange(prime), random.randrange(prime)) for _ in range(2000)]
    return [(a, b) for a in edges for b in edges] + drawn


def polynomial(field, coefficients, points):
    return [sum(c * pow(x, k, field.modulus) for k, c in enumerate(coefficients)) for x in points]


def roots(field, order):
    return [pow(field.root(order), k, field.modulus) for k in range(order)]


@FIELDS
def test_sums_differences_and_products(field):
    given = pairs(field)
    x, y = (field.from_integers(side) for side in zip(*given, strict=True))
    assert field.to_integers(x) == [a for a, _ in given]
    assert field.to_integers(field.add(x, y)) == [(a + b) % field.modulus for a, b in given]
    assert field.to_integers(field.subtract(x, y)) == [(a - b) % field.modulus for a, b in given]
    assert field.to_integers(field.multiply(x, y)) == [a * b % field.modulus for a, b in given]
    assert field.total(x) == sum(a for a, _ in given) % field.modulus


@FIELDS
@pytest.mark.parametrize("n", [1, 2, 4, 32])
def test_polynomials_by_their_values(field, n):
    a, b = ([random.randrange(field.modulus) for _ in range(n)] for _ in range(2))
    at_n, at_2n = roots(field, n), roots(field, 2 * n)
    left, right = (field.from_integers(polynomial(field, c, at_n)) for c in (a, b))
    wanted = [y % field.modulus for y in polynomial(field, a, at_2n)]
    products = [x * y for x, y in zip(wanted, polynomial(field, b, at_2n), strict=True)]
    squares = [y * y for y in polynomial(field, b, at_2n)]
    got = field.sum_of_products(np.concatenate([left, right, right, right]), n)
    assert field.to_integers(got) == [(p + q) % field.modulus for p, q in zip(products, squares, strict=True)]
    point = random.randrange(field.modulus)
    value = field.weigh_rows(left, field.evaluation_weights(point, n))
    assert field.to_integers(value) == [y % field.modulus for y in polynomial(field, a, [point])]
    with pytest.raises(ValueError, match="root of unity"):
        field.evaluation_weights(at_n[-1], n)


@FIELDS
def test_encoded_elements_are_below_the_prime(field):
    vector = field.from_integers([0, 1, field.modulus - 1])
    assert np.array_equal(field.decode(field.encode(vector), count=3), vector)
    for beyond in (field.modulus, field.modulus + 1, 2 ** (8 * field.encoded_size) - 1):
        with pytest.raises(ValueError, match="below the prime"):
            field.decode(beyond.to_bytes(field.encoded_size, "little"), count=1)
    with pytest.raises(ValueError, match="bytes, not"):
        field.decode(field.encode(vector)[:-1], count=3)


@FIELDS
def test_random_words_beyond_the_prime_are_skipped(field, monkeypatch):
    """In truth this happens once in 2**32 elements, or less often."""
    size, prime = field.encoded_size, field.modulus
    words = [5, prime, 7, 2 ** (8 * size) - 1, prime - 1, prime + 3, 9, 11]
    stream = io.BytesIO(b"".join(word.to_bytes(size, "little") for word in words))
    monkeypatch.setattr(prio3, "_stream", lambda seed, tag, binder: stream)
    vector = expand_into_vector(field, b"", tag=b"", binder=b"", length=4)
    assert field.to_integers(vector) == [5, 7, prime - 1, 9]
    assert stream.read() == (11).to_bytes(size, "little")
