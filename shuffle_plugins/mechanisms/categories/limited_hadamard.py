"""Hadamard response in one bit, also when little randomness is at hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket, RecordTypes
from shuffle_plugins.compressors import hadamard_scatter, hadamard_signs, padded_dim
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.hadamard_response import ideal_hadamard_response
from shuffle_plugins.mechanisms.categories.mixture_oracle import Mixture, as_built, flip_threshold, odds_below
from shuffle_plugins.mechanisms.frequency import FrequencyOracle
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import WHOLE, Randomness

_NO_EDGE = 1 - 1e-6  # nearer to 1, the spread masses lose their digits


def binary_entropy(probability: float) -> float:
    """H2(p) in bits, for p in [0, 1]."""
    if probability in (0.0, 1.0):
        return 0.0
    rest = math.log1p(-probability) * (1 - probability)
    return -(probability * math.log(probability) + rest) / math.log(2)


def critical_randomness(local_epsilon: float) -> float:
    """H2(1/(e^ε0 + 1)), the private random bits per client beyond which more do not help (Theorem 7.3.1)."""
    return binary_entropy(1 / (math.exp(local_epsilon) + 1))


class LimitedHadamard(FrequencyOracle):
    r"""Randomness-limited Hadamard response (Girgis's thesis, section 7.3.2, after Acharya, Sun 2019).

    A report is a group j and a bit Y. The group, a column of the Hadamard matrix of size S, is uniform, owes
    nothing to x and could be public; here it is sent. The bit answers whether :math:`H_{x+1,j} = 1`: it is 1
    with probability q if so, with probability q/e else, :math:`e = e^{ε_0}`. Category c is counted as
    :math:`H_{c+1,j}\,(2Y - q - q/e)/(q - q/e)`.

    q = e/(e+1) if the answer may take R ≥ H2(1/(e+1)) bits of private randomness. Below, q is the smaller
    solution of H2(q) = R, which costs accuracy and saves keys, not privacy or draws: R is the entropy of the
    bit given x and j, whatever the generator. Both outcomes keep to ε0. Y = 1 has odds e. Y = 0 has odds (1 -
    q/e)/(1 - q), at most e exactly if q ≤ e/(e+1), so also for every q ≤ 1/2. Probabilities are multiples of
    2**-62, rounded so that neither exceeds e.

    The thesis uses the row x of the smallest S ≥ K; here row 0, whose answer is always yes, is left out and S
    is above K, so that all categories fare alike. It takes a bit more where K is a power of two.

    Theorem 7.3.1's lower bound is ``accounting.published.girgis23.frequency_error_bound`` where randomness is
    enough. Its regime R < H2(1/(e+1)), with q² in the denominator, is not offered: it is wrong. At ε0 = 1, R
    = 0.0114 and K = 1000 this very mechanism has less error. The order is 1/q, not 1/q².

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
        randomness_bits: R, bits of private randomness for the answer, positive; as many as help by default.

    Raises:
        ValueError: if a parameter is out of range, or R leaves no answer that tells anything.
    """

    name: ClassVar[str] = "limited-hadamard"

    def __init__(self, *, local_epsilon: float, dim: int, randomness_bits: float | None = None) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._size = padded_dim(dim + 1)
        self._index_bits = (self._size - 1).bit_length()
        critical = critical_randomness(self.local_epsilon)
        given = (
            critical
            if randomness_bits is None
            else checks.number("randomness_bits", randomness_bits, above=0)
        )
        self._limited = given < critical
        if self._limited:
            self._yes = math.floor(_smaller_probability(given) * WHOLE)
            self._no = math.ceil(self._yes / odds_below(self.local_epsilon))
        else:
            self._no = flip_threshold(self.local_epsilon)
            self._yes = WHOLE - self._no
        if self._yes <= self._no:
            raise ValueError(
                f"randomness_bits={randomness_bits!r} makes both answers equally likely at "
                f"local_epsilon={local_epsilon!r}, as probabilities are multiples of 2**-62: give more"
            )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, randomness_bits={self.randomness_bits!r})"

    @property
    def randomness_bits(self) -> float:
        """Entropy of the answer given category and group, in bits: H2(q), the larger of the two."""
        return max(binary_entropy(self._yes / WHOLE), binary_entropy(self._no / WHOLE))

    @property
    def answer_probability(self) -> float:
        """q, the probability of a 1 where the answer is yes."""
        return self._yes / WHOLE

    @property
    def layout(self) -> ReportLayout:
        """The group's index, and the answer bit."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self._index_bits), FieldLayout(1)))

    @property
    def _gain(self) -> float:
        return (self._yes - self._no) / WHOLE

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = K·(1 + 2(q(1-q) + p(1-p))/(q - p)²) - 1 with p = q/e, for every category."""
        spread = sum(p / WHOLE * ((WHOLE - p) / WHOLE) for p in (self._yes, self._no))
        return self.dim * (1 + 2 * spread / self._gain**2) - 1

    def blanket(self) -> Blanket:
        """That of its own two answers with limited randomness; else of the masses of Hadamard response.

        Either answer of a group is likely for any third record. Of a group drawn at random, and either
        answer, any three categories make any of the 8 combinations equally likely, also if one of the three
        rows is the product of the others.
        """
        if self._limited:
            return _limited_blanket(local_epsilon=self.local_epsilon, yes=self._yes, no=self._no)
        odds = Mixture.of(self.local_epsilon, share=Fraction(1, 2)).odds
        law = as_built(
            ideal_hadamard_response(local_epsilon=self.local_epsilon), categories=self.dim, odds=odds
        )
        eighths = dict.fromkeys(itertools.product((0, 1), repeat=3), law.mass / 8)
        others = RecordTypes.two_level(local_epsilon=self.local_epsilon, shares=eighths)
        return replace(law, outside=0.0, others=others)

    @override
    def sum(self, reports: Reports) -> Tensor:
        groups, answers = self._parts(reports)
        offset = (WHOLE - self._yes - self._no) / WHOLE
        values = (2 * answers - 1).double().add_(offset).div_(self._gain)
        return hadamard_scatter(groups, values, dim=self.dim + 1)[1:]

    def outcomes(self) -> Reports | None:
        """Either answer of every group, up to 2**15 groups."""
        if 2 * self._size > MOST_OUTCOMES:
            return None
        every = torch.arange(2 * self._size)
        return self.layout.reports(every // 2, every % 2)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held category x; thresholds as they are rounded."""
        category = self.check_categories(x.reshape(1)).to(reports.fields[0].values.device)
        groups, answers = self._parts(reports)
        ones = self._one_thresholds(category + 1, groups)
        drawn = torch.where(answers > 0, ones, WHOLE - ones)
        return drawn.double().div_(WHOLE).log_().sub_(math.log(self._size))

    def _one_thresholds(self, rows: Tensor, groups: Tensor) -> Tensor:
        return torch.where(hadamard_signs(rows, groups) > 0, self._yes, self._no)

    def _parts(self, reports: Reports) -> tuple[Tensor, Tensor]:
        groups, answers = self.read_reports(reports, self._size, 2)
        return groups, answers

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """A group and a bit for each category."""
        groups = randomness.integers(self._size, len(x), device=x.device)
        return self.layout.reports(groups, randomness.bernoulli(self._one_thresholds(x + 1, groups)))


def _smaller_probability(entropy: float) -> float:
    """The largest p in [0, 1/2] whose entropy, up to rounding, is at most the given number of bits."""
    low, high = 0.0, 0.5
    for _ in range(1100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if binary_entropy(middle) <= entropy else (low, middle)
    return low


def _limited_blanket(*, local_epsilon: float, yes: int, no: int) -> Blanket:
    """One-bit Hadamard response with answers less random than ε0 allows.

    Two categories disagree in half of the groups, either way in a quarter, and agree on yes and on no in a
    quarter each: all pairs have the same law. Under the blanket, of mass p + 1 - q, the answer 1 has
    probability p and weighs e^ε0 for who means yes; the answer 0 has 1 - q and weighs r = (1 - p)/(1 - q) <
    e^ε0 for who means no. The atoms (r, r) are spread over (1, 1) and (e^ε0, e^ε0) at equal mean: an upper
    bound.

    Args:
        local_epsilon: ε0 in nats.
        yes: q, probability of a 1 where the answer is yes, in units of 2**-62; at most half.
        no: p, where it is no; at least q·e^-ε0.
    """
    one, zero = no / WHOLE / 4, (WHOLE - yes) / WHOLE / 4
    excess = (yes - no) / (WHOLE - yes)
    spread = excess / math.expm1(checks.local_epsilon(local_epsilon))
    # Everybody else holds x'. A quarter of the groups say yes to x alone, a quarter to x' alone.
    gain, loss = (yes - no) / no, (no - yes) / yes
    quarters = (
        (gain, 0.0, no / WHOLE / 4),
        (-excess / (1 + excess), 0.0, (WHOLE - no) / WHOLE / 4),
        (loss, 0.0, yes / WHOLE / 4),
        (excess, 0.0, zero),
        (0.0, 0.0, 0.5),
    )
    if spread > _NO_EDGE:
        return replace(Blanket.generic(local_epsilon, exact=False), instances=(quarters,))
    return Blanket(
        local_epsilon=local_epsilon,
        differing=one,
        low=one + zero * (2 - spread),
        high=one + zero * spread,
        edges=((1 + excess, zero),),
        exact=False,
        instances=(quarters,),
    )
