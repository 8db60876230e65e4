"""Hadamard response in one bit, also with little randomness, and in layers for several analysts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket, RecordTypes
from shuffle_plugins.accounting.numerics.search import narrowed
from shuffle_plugins.compressors.hadamard import hadamard_scatter, hadamard_signs, padded_dim
from shuffle_plugins.compressors.quantization import flip_threshold, odds_below
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.checks import in_range
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, FrequencyOracle
from shuffle_plugins.mechanisms.oracles import HadamardResponse
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure


def binary_entropy(probability: float) -> float:
    """H2(p) in bits, for p in [0, 1]."""
    if probability in (0.0, 1.0):
        return 0.0
    rest = math.log1p(-probability) * (1 - probability)
    return -(probability * math.log(probability) + rest) / math.log(2)


def critical_randomness(local_epsilon: float) -> float:
    """H2(1/(e^ε0 + 1)), the private random bits per client beyond which more do not help (Theorem 7.3.1)."""
    return binary_entropy(1 / (math.exp(local_epsilon) + 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class LimitedHadamard(FrequencyOracle):
    """Randomness-limited Hadamard response (Girgis's thesis, section 7.3.2, after Acharya, Sun 2019).

    A report is a uniform group j, a column of the Hadamard matrix of size S > K, and a bit Y, which answers
    whether :math:`H_{x+1,j} = 1`: 1 with probability q if so, q/e else. q = e/(e+1) if the answer may take
    R ≥ H2(1/(e+1)) bits of private randomness; below, the smaller solution of H2(q) = R, which costs accuracy
    and saves keys, not privacy.

    The lower bound of Theorem 7.3.1 for R < H2(1/(e+1)), with q² in the denominator, is wrong: at ε0 = 1,
    R = 0.0114 and K = 1000 this very mechanism has less error. The order is 1/q.

    Attributes:
        randomness_bits: R, bits of private randomness for the answer, positive; as many as help by default.
            When built, what it takes of them: the entropy of the answer given category and group.
    """

    name: ClassVar[str] = "limited-hadamard"
    randomness_bits: Annotated[float, in_range(above=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        used = max(binary_entropy(answer / WHOLE) for answer in self._answers)
        object.__setattr__(self, "randomness_bits", used)

    @cached_property
    def _answers(self) -> tuple[int, int]:
        """q and q/e in units of 2**-62: they add up to one unless randomness is limited."""
        bits, no = self.randomness_bits, flip_threshold(self.local_epsilon)
        yes = WHOLE - no
        if bits is not None and bits < critical_randomness(self.local_epsilon):
            yes = math.floor(_smaller_probability(bits) * WHOLE)
            no = math.ceil(yes / odds_below(self.local_epsilon))
        if yes <= no:
            raise ValueError(
                f"randomness_bits={bits!r} makes both answers equally likely at "
                f"local_epsilon={self.local_epsilon!r}, as probabilities are multiples of 2**-62: give more"
            )
        return yes, no

    @property
    def answer_probability(self) -> float:
        """q, the probability of a 1 where the answer is yes."""
        return self._answers[0] / WHOLE

    @property
    def _size(self) -> int:
        return padded_dim(self.dim + 1)

    @property
    @override
    def layout(self) -> ReportLayout:
        fields = FieldLayout((self._size - 1).bit_length()), FieldLayout(1)
        return ReportLayout(self.name, self.dim, fields)

    @property
    def _gain(self) -> float:
        yes, no = self._answers
        return (yes - no) / WHOLE

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = K·(1 + 2(q(1-q) + p(1-p))/(q - p)²) - 1 with p = q/e, for every category."""
        spread = sum(p / WHOLE * ((WHOLE - p) / WHOLE) for p in self._answers)
        return self.dim * (1 + 2 * spread / self._gain**2) - 1

    def blanket(self) -> Blanket:
        """That of its own two answers with limited randomness; else of the masses of Hadamard response.

        Of a random group any three categories make any of the 8 combinations equally likely.
        """
        yes, no = self._answers
        if yes + no < WHOLE:
            return _limited_blanket(local_epsilon=self.local_epsilon, yes=yes, no=no)
        law = HadamardResponse(local_epsilon=self.local_epsilon, dim=self.dim).blanket()
        eighths = dict.fromkeys(itertools.product((0, 1), repeat=3), law.mass / 8)
        others = RecordTypes.two_level(local_epsilon=self.local_epsilon, shares=eighths)
        return replace(law, outside=0.0, others=others)

    @override
    def sum(self, reports: Reports) -> Tensor:
        groups, answers = self.read_reports(reports, self._size, 2)
        offset = (WHOLE - sum(self._answers)) / WHOLE
        values = (2 * answers - 1).double().add_(offset).div_(self._gain)
        return hadamard_scatter(groups, values, dim=self.dim + 1)[1:]

    @override
    def outcomes(self) -> Reports | None:
        if 2 * self._size > MOST_OUTCOMES:
            return None
        every = torch.arange(2 * self._size)
        return self.layout.reports(every // 2, every % 2)

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        category = self.check_categories(x.reshape(1)).to(reports.fields[0].values.device)
        groups, answers = self.read_reports(reports, self._size, 2)
        ones = self._one_thresholds(category + 1, groups)
        drawn = torch.where(answers > 0, ones, WHOLE - ones)
        return drawn.double().div_(WHOLE).log_().sub_(math.log(self._size))

    def _one_thresholds(self, rows: Tensor, groups: Tensor) -> Tensor:
        return torch.where(hadamard_signs(rows, groups) > 0, *self._answers)

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        groups = randomness.integers(self._size, len(x), device=x.device)
        return self.layout.reports(groups, randomness.bernoulli(self._one_thresholds(x + 1, groups)))


def _smaller_probability(entropy: float) -> float:
    """The largest p in [0, 1/2] whose entropy, up to rounding, is at most the given number of bits."""
    return narrowed(lambda p: binary_entropy(p) <= entropy, 1e-300, 0.5, precision=1e-15)[0]


def _limited_blanket(*, local_epsilon: float, yes: int, no: int) -> Blanket:
    """One-bit Hadamard response with answers less random than ε0 allows; all pairs have the same law.

    The answer 1 has probability p under the blanket and weighs e^ε0 for who means yes; 0 has 1 - q and weighs
    r = (1 - p)/(1 - q) < e^ε0 for who means no. The atoms (r, r) are spread over (1, 1) and (e^ε0, e^ε0) at
    equal mean: an upper bound.
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
    if spread > 1 - 1e-6:  # nearer to 1, the spread masses lose their digits
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


@dataclass(frozen=True, eq=False)
class LayeredReports:
    """What the clients of a round make: reports of the last level, which anybody may see, and keys.

    Column j of ``keys``, uint8 (clients, levels), turns public reports into those of level j, and gives away
    as much as they do: send it to that analyst alone.
    """

    public: Reports
    keys: Tensor


@dataclass(frozen=True, kw_only=True)
class MultilevelHadamard:
    r"""Successive refinement of one-bit Hadamard response (Girgis's thesis, section 7.4, Theorem 7.4.1).

    For :math:`ε_1 > \dots > ε_d` a client flips the answer of a :class:`~.LimitedHadamard` at ε_1 further,
    level by level: :math:`Y^j` is a report of ``levels[j - 1]``. :math:`Y^d` is public; the analyst of level
    j gets the key :math:`L^j` for :math:`Y^j = Y^d ⊕ L^j`. What an analyst sees costs ε_j, and a coalition
    learns what its most trusted member knows. A key belongs to its report: put both in one order, or leave
    reports unshuffled.
    """

    local_epsilons: Sequence[float]
    dim: int

    def __post_init__(self) -> None:
        epsilons = [level.local_epsilon for level in self.levels]
        if not epsilons or any(late >= early for early, late in pairwise(epsilons)):
            raise ValueError(f"local_epsilons are one or more that fall from level to level, got {epsilons}")

    @cached_property
    def levels(self) -> tuple[LimitedHadamard, ...]:
        """The mechanism of each level, which reads its reports; from the most trusted one to the public."""
        return tuple(LimitedHadamard(local_epsilon=each, dim=self.dim) for each in self.local_epsilons)

    @cached_property
    def _cascade(self) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
        """Thresholds of the steps, and the exact probability of a flip after each."""
        steps, flips = [], []
        flip = Fraction(0)
        for level in self.levels:
            target = 1 / (odds_below(level.local_epsilon) + 1)
            step = max(math.ceil(WHOLE * (target - flip) / (1 - 2 * flip)), 0)
            flip += Fraction(step, WHOLE) * (1 - 2 * flip)
            steps.append(step)
            flips.append(flip)
        return tuple(steps), tuple(flips)

    @property
    def flip_probabilities(self) -> tuple[Fraction, ...]:
        """Exact probability with which each level's answer is flipped, at least 1/(e^ε + 1)."""
        return self._cascade[1]

    @property
    def randomness_bits(self) -> float:
        """Σ H2(q_j): entropy of a client's noise, in bits."""
        return math.fsum(binary_entropy(step / WHOLE) for step in self._cascade[0])

    @property
    def separate_randomness_bits(self) -> float:
        """Σ H2(z_j): what a report for every analyst on its own would take, in bits."""
        return math.fsum(binary_entropy(float(flip)) for flip in self.flip_probabilities)

    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> LayeredReports:
        """Report each client's category, (clients,) integers in [0, dim), once for all levels."""
        randomness = secure(randomness)
        reports = self.levels[0].randomize(x, randomness=randomness)
        steps = torch.tensor([*self._cascade[0][1:], 0], device=x.device).expand(len(x), len(self.levels))
        noise = randomness.bernoulli(steps).to(torch.uint8)
        keys = noise.flip(1).cumsum(dim=1, dtype=torch.int64).flip(1).bitwise_and_(1).to(torch.uint8)
        return LayeredReports(public=_flipped(reports, keys[:, 0]), keys=keys)

    def unlock(self, public: Reports, key: Tensor) -> Reports:
        """The reports of the level that a key (clients,), in their order, belongs to: Y^j = Y^d ⊕ L^j."""
        self.levels[0].layout.check(public)
        bits = checked_categories(key, categories=2)
        if len(bits) != len(public):
            raise ValueError(f"a key has a bit for each of {len(public)} reports, got {len(bits)}")
        return _flipped(public, bits)


def _flipped(reports: Reports, bits: Tensor) -> Reports:
    groups, answers = (field.values for field in reports.fields)
    return reports.layout.reports(groups, answers.to(torch.int64) ^ bits.to(answers.device))
