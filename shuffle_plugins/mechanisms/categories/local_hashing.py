"""Local hashing: each client hashes its category with a function of its own, and randomises the hash."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.bit_vectors import column_counts
from shuffle_plugins.mechanisms.categories.mixture_oracle import Mixture, MixtureOracle, any_three, as_built
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import Randomness

_CHUNK = 1 << 20  # comparisons made at a time
_WIDEST_HASH = 10**9  # beyond, more buckets gain nothing that float64 shows
_LARGEST_RANGE = 1 << 31  # a product of two numbers fits a signed word


def hash_range(local_epsilon: float) -> int:
    """The best number of buckets of local hashing, about e^ε0 + 1, up to a billion."""
    return max(round(min(math.exp(local_epsilon), _WIDEST_HASH)) + 1, 2)


def ideal_local_hashing(*, local_epsilon: float, buckets: int | None = None) -> Blanket:
    """Local hashing: a public random hash of the category, as K-ary response over its buckets.

    Args:
        local_epsilon: ε0 in nats.
        buckets: g ≥ 2; the best for estimation, about e^ε0 + 1, by default. Hash values of any three
            categories are uniform and independent.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    g = hash_range(local_epsilon) if buckets is None else checks.whole("buckets", buckets, at_least=2)
    size = e + g - 1
    apart = 1 - 1 / g
    return Blanket(
        local_epsilon=local_epsilon,
        differing=apart / size,
        low=apart * (g - 2) / size + (g - 1) / (g * size),
        high=1 / (g * size),
        outside=apart * apart / size,
        **any_three(
            local_epsilon, lambda a, b, c: g / size * math.prod(1 / g if hit else apart for hit in (a, b, c))
        ),
    )


class LocalHashing(MixtureOracle):
    r"""Optimal local hashing (Wang, Blocki, Li, Jha 2017), with a hash family that is exactly uniform.

    A client draws a hash :math:`h(x) = \sum_j a_j x_j \bmod g` of the m = ceil(log2 K) bits of its category,
    and sends its coefficients a with a value z in [0, g): with probability :math:`γ = (e-1)/(e+g-1)` the
    value h(x), else a uniform one. Category c is counted as :math:`([h(c) = z] - 1/g)/(γ(1 - 1/g))`.

    *Why the hash is as good as a random function.* Privacy and error depend on which of the events
    :math:`h(c) = z` occur together when z is uniform, so on the law of the differences z - h(c). For any
    three categories these are uniform on :math:`Z_g^3`, whatever g. The first is uniform given a. The two
    others are the first plus :math:`a·u` and :math:`a·v`, with u and v differences of binary vectors; these
    are uniform together if u and v are independent modulo every prime that divides g. If they were not, three
    distinct binary points would have weights λ1 + λ2 + λ3 = 0, not all 0, with Σ λ_i x_i = 0. In each
    coordinate two of the points agree, say the first two; then λ3 times (third - first) is 0 there. So all
    three agree in that coordinate, unless a weight is 0, and then the points of the other two weights are
    equal. Either way two points coincide. Hence the blanket of
    :func:`ideal_local_hashing`, which asks for three-wise independence, holds, and the variance is exact.

    Summing takes clients x dim comparisons.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
        buckets: g, range of the hash, in [2, 2**31]; the best one, about e^ε0 + 1, by default.
    """

    name: ClassVar[str] = "local-hashing"

    def __init__(self, *, local_epsilon: float, dim: int, buckets: int | None = None) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        if buckets is None:
            buckets = hash_range(self.local_epsilon)
        self._buckets = checks.whole("buckets", buckets, at_least=2, at_most=_LARGEST_RANGE)
        self._mixture = Mixture.of(local_epsilon, share=Fraction(1, buckets))
        self._digits = (dim - 1).bit_length()
        self._bits = (buckets - 1).bit_length()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, buckets={self._buckets})"

    @property
    def buckets(self) -> int:
        """g, range of the hash."""
        return self._buckets

    @property
    def layout(self) -> ReportLayout:
        """The hash function's coefficients and the hashed category, all below the hash's range."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self._bits, self._digits + 1),))

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = (K-1)/(γ²(g-1)) + a(1-a)/(γ(1-1/g))², a = γ + (1-γ)/g, for every category."""
        truth, g = self._mixture.truth, self._buckets
        own, missed = truth + self._mixture.noise / g, self._mixture.noise * (g - 1) / g
        return (self.dim - 1) / (truth**2 * (g - 1)) + own * missed / (truth * (1 - 1 / g)) ** 2

    def blanket(self) -> Blanket:
        """That of local hashing to g buckets; see above for why it holds here."""
        ideal = ideal_local_hashing(local_epsilon=self.local_epsilon, buckets=self._buckets)
        return as_built(ideal, categories=self.dim, odds=self._mixture.odds)

    @override
    def sum(self, reports: Reports) -> Tensor:
        coefficients, values = self._parts(reports)
        low = self._digits // 2
        counts = torch.zeros(1 << self._digits, dtype=torch.int64, device=values.device)
        # h(c) = z is met in the middle: the upper bits' part of h(c) equals z less the lower bits' part.
        compact = torch.int16 if self._buckets <= 1 << 15 else torch.int64
        rows = max(1, _CHUNK // len(counts))
        for start in range(0, len(values), rows):
            part = coefficients[start : start + rows]
            upper = self._hashes(part[:, low:], torch.zeros_like(part[:, :1])).to(compact)
            lower = self._hashes(-part[:, :low], values[start : start + rows].unsqueeze(1)).to(compact)
            same = upper.unsqueeze(2) == lower.unsqueeze(1)
            counts += column_counts(same.view(torch.uint8).reshape(len(part), -1))
        expected = len(values) / self._buckets
        gain = self._mixture.truth * (1 - 1 / self._buckets)
        return (counts[: self.dim].double() - expected) / gain

    def outcomes(self) -> Reports | None:
        """Every hash with every value, where these are at most 2**16."""
        count = self._buckets ** (self._digits + 1)
        if count > MOST_OUTCOMES:
            return None
        powers = self._buckets ** torch.arange(self._digits + 1)
        numbers = torch.arange(count).unsqueeze(1) // powers % self._buckets
        return self._reports(numbers[:, 1:], numbers[:, 0])

    @property
    def _log_reports(self) -> float:
        return (self._digits + 1) * math.log(self._buckets)

    def _likely(self, reports: Reports, category: int) -> Tensor:
        coefficients, values = self._parts(reports)
        return self._hash(coefficients, torch.full_like(values, category)) == values

    def _hash(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """Each client's hash of its own category, (clients,)."""
        digits = x.unsqueeze(1) >> torch.arange(self._digits, device=x.device) & 1
        return (coefficients * digits).sum(dim=1).remainder_(self._buckets)

    def _hashes(self, coefficients: Tensor, first: Tensor) -> Tensor:
        """Each client's ``first`` plus its hash of every number of as many bits as coefficients, doubling."""
        found = first
        for column in coefficients.unbind(dim=1):
            found = torch.cat([found, found + column.unsqueeze(1)], dim=1)
        return found.remainder(self._buckets)

    def _parts(self, reports: Reports) -> tuple[Tensor, Tensor]:
        (numbers,) = self.read_reports(reports, self._buckets)
        return numbers[:, :-1], numbers[:, -1]

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """A hash function for each client, and a value that is likelier to be the hash of its category."""
        coefficients = randomness.integers(self._buckets, (len(x), self._digits), device=x.device)
        uniform = randomness.integers(self._buckets, len(x), device=x.device)
        truthful = self._truthful(x, randomness)
        return self._reports(coefficients, torch.where(truthful, self._hash(coefficients, x), uniform))

    def _reports(self, coefficients: Tensor, values: Tensor) -> Reports:
        numbers = torch.cat([coefficients, values.unsqueeze(1)], dim=1)
        return self.layout.reports(numbers)
