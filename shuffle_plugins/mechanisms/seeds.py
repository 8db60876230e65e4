"""Reports that are seeds: sixteen bytes that name a public normal vector which leans towards the client's.

A client looks through random seeds and keeps the first whose vector passes a random test; the server expands
it. Law, ε0 and what is charged: ``docs/proofs/mechanisms.md``, section 4a.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, Floats, InformationBound
from shuffle_plugins.accounting.pairs.reports import diluted, most_telling, read_coarsely
from shuffle_plugins.compressors.seeds import (
    LOST_VARIANCE,
    SEED_WORDS,
    UNIT,
    draw_seeds,
    expand,
    expand_all,
    keys,
    sum_expanded,
)
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports
from shuffle_plugins.core.checks import whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, spans
from shuffle_plugins.mechanisms.half_spaces import (
    HalfSpaceReports,
    half_spaces,
    mixed_half_spaces,
    most_information_of,
    optimal_privunit_g,
)
from shuffle_plugins.mechanisms.privunit import StepDensity
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness

_WIDTH = 0.05  # deviation of what blurs a step; its square is what it adds to the variance
_SCALE = 1 / (_WIDTH * math.sqrt(2))
_LOUDEST = 10.0  # ε0 that a search spends at most: some 2,000 tries
_ROUNDING = 1e-10  # of an inner product in float64, over the blur; a million coordinates err by 1e-12
_PEAK, _SLOPE = 0.4, 0.243  # bounds on φ and |φ'|, φ the normal density
_TOLD_UP_TO = 4.0  # ε0 beyond which what a report tells is bounded better by the blanket


def blurred_error(*, width: float = _WIDTH) -> float:
    """κ: by how much the mean of a blurred step, of a public vector, may differ from that of a normal one."""
    return _SLOPE * LOST_VARIANCE / (2 * width**2) + _PEAK * UNIT / 2 / width + _ROUNDING


def covered_tails(thresholds: Floats, *, width: float = _WIDTH) -> Floats:
    """Of levels 1/K, …, 1: bounds on P[F⁺ ≥ level] for an F⁺ that is above F in convex order.

    The blur is taken in two halves; given the first, F is cut into K levels (section 4a of the proofs).
    Where this would make more than a half of all vectors likely, the steps themselves are the levels.
    """
    half, levels, cells = width / math.sqrt(2), 16, 1 << 17
    spread = math.hypot(1.0, half)
    places = ((np.arange(cells) + 0.5) / cells - 0.5) * 20 * spread
    mass = np.exp(-((places / spread) ** 2) / 2) / math.sqrt(2 * math.pi) * 20 / cells
    share = special.ndtr((places[:, None] - thresholds) / half).mean(axis=1)
    tails = np.array([mass @ np.clip(share * levels - level, 0.0, 1.0) for level in range(levels)])
    tails += blurred_error(width=half) + 3e-7  # of the integral, which has kinks
    if tails[0] <= 0.5:
        return tails
    single: Floats = special.ndtr(-thresholds / math.hypot(1.0, width))
    return single + blurred_error(width=width)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedLaw:
    """The law of a seed: of density (1 + (e − 1)·F)/A, F the mean of blurred steps of one inner product.

    Attributes:
        local_epsilon: ε0 of a report.
        steps: the half-spaces, as those of a vector with one number more, which is not sent and blurs
            them; of an ε_i that leaves room below ε0 for what is charged.
        tails: :func:`covered_tails`.
    """

    local_epsilon: float
    steps: StepDensity
    tails: Floats

    @classmethod
    def of(cls, law: Callable[..., StepDensity], *, local_epsilon: float, dim: int) -> SeedLaw:
        """Blur the steps of a law, and charge what public vectors are not normal by."""
        spent = min(local_epsilon, _LOUDEST)
        # 1e-5: at ε0 next to 0 half-spaces are halves, and what is charged must not make them larger
        thresholds = np.maximum(law(local_epsilon=spent, dim=dim).thresholds, 1e-5)
        tails = covered_tails(thresholds * math.hypot(1.0, _WIDTH))
        mean = float(special.ndtr(-thresholds).mean())
        lost = math.expm1(spent) * (float(tails.mean()) - mean + blurred_error())
        spent += math.log1p(-lost / (1 - float(tails[0]))) * (1 + 1e-9)
        steps = half_spaces(*thresholds.tolist(), local_epsilon=spent, dim=dim)
        return cls(local_epsilon=local_epsilon, steps=steps, tails=tails)

    @property
    def expected_tries(self) -> float:
        """How many seeds a client looks at, on average; it does not depend on the record."""
        return math.exp(self.steps.local_epsilon) * self.steps.plain_probability

    @cached_property
    def thresholds(self) -> Floats:
        """Where the steps of the inner product are, before they are blurred."""
        return np.array(self.steps.thresholds) * math.hypot(1.0, _WIDTH)

    def share(self, along: Floats) -> Floats:
        """F of these inner products."""
        found: Floats = special.ndtr((along[..., None] - self.thresholds) / _WIDTH).mean(axis=-1)
        return found

    def accepted(self, along: float) -> int:
        """Probability that a seed of this inner product is kept, times 2**62; e^ε0 apart at most."""
        least, places = math.exp(-self.steps.local_epsilon), self._places
        share = sum(math.erfc(place - along * _SCALE) for place in places) / (2 * len(places))
        return min(math.ceil((least + (1 - least) * share) * WHOLE), WHOLE)

    @cached_property
    def _places(self) -> list[float]:
        found: list[float] = (self.thresholds * _SCALE).tolist()
        return found

    def reports(self, missed: float) -> StepDensity:
        """The law of the vector itself, if with a probability ``missed`` it is a plain one."""
        p, square = self.steps, 1 + _WIDTH**2
        plain = math.ceil(WHOLE - (1 - missed) * (WHOLE - p.plain_threshold))
        return replace(
            p,
            plain_threshold=min(plain, WHOLE),
            mean=(1 - missed) * p.mean / math.sqrt(square),
            mean_square=p.dim + (1 - missed) * (p.mean_square - p.dim) / square,
        )

    @cached_property
    def blanket(self) -> Blanket:
        """That of the uncompressed law, with levels and masses that cover public vectors, too."""
        if self.local_epsilon > _LOUDEST:
            return Blanket.generic(self.local_epsilon, exact=False).shared()
        p, tails = self.steps, self.tails
        gain, count = math.expm1(p.local_epsilon), len(tails)
        raised = math.exp(self.local_epsilon - p.local_epsilon)
        levels = raised * (1 + gain * np.arange(1, count + 1) / count)
        cells = tails - np.append(tails[1:], 0.0)
        plain = 1 / (1 - float(tails[0]) + float(cells @ levels))
        apart = np.linspace(math.pi / 2, math.pi, 7).tolist() if p.dim > 1 else [math.pi]
        return Blanket(
            local_epsilon=self.local_epsilon,
            differing=plain * float(tails[-1]),
            low=plain * (1 - 2 * float(tails[0])),
            edges=tuple(zip(levels[:-1].tolist(), (plain * cells[:-1]).tolist(), strict=True)),
            exact=False,
            instances=(most_telling(map(self._instance, apart)),),
            information_bound=self._information(plain),
        ).shared()

    def _information(self, plain: float) -> InformationBound | None:
        p, gain = self.steps, math.expm1(self.steps.local_epsilon)
        if self.local_epsilon > _TOLD_UP_TO or p.dim == 1:
            return None
        apart = 2 * gain * blurred_error()
        curved = 8 * _PEAK**2 + 4 * _SLOPE + (_SLOPE + 8 * _PEAK**2) * gain + 2 * (_PEAK * gain) ** 2
        error = curved * LOST_VARIANCE / (2 * _WIDTH**2) + (4 + gain) * (_PEAK * UNIT / _WIDTH + _ROUNDING)
        told = p.plain_probability * gain**2 * (most_information_of(p) + error) * (1 + apart) ** 5
        told = told * (1 + 1e-3) + (1 + 1e3) * (2 * apart * math.exp(self.local_epsilon)) ** 2
        return InformationBound.of_blanket(local_epsilon=self.local_epsilon, information=told, mass=plain)

    @cached_property
    def _table(self) -> Floats:
        return self.share(np.arange(-13.0, 13.0, 1e-4))

    def _looked_up(self, along: Floats) -> Floats:
        """F within 13 of zero, off a table so fine that what lies between is linear to 1e-7."""
        place = (along + 13.0) * 1e4
        before = place.astype(np.int64)
        low = self._table.take(before)
        found: Floats = low + (place - before) * (self._table.take(before + 1) - low)
        return found

    def _instance(self, apart: float) -> Atoms:
        """Of x and x' at this angle, and z opposite the middle of the two, or x' itself in one dimension.

        They are in the plane of two axes, and a report is read as the cells that both coordinates are in:
        of whole cells of public vectors the masses are exact, and means are off by less than the dilution.
        """
        inner = np.unique(np.rint(special.ndtr(np.arange(-5.0, 5.01, 0.1)) * 65536))[1:-1] / 65536
        ends = np.concatenate([[-9.0], special.ndtri(inner), [9.0]])
        nodes, weights = np.polynomial.legendre.leggauss(3)
        half = np.diff(ends)[:, None] / 2
        places = (ends[:-1, None] + half * (1 + nodes)).ravel()
        within = (half * weights).ravel() * np.exp(-(places**2) / 2)
        within = within.reshape(half.size, -1)
        within /= within.sum(axis=1, keepdims=True)
        mass = np.diff(inner, prepend=0.0, append=1.0)
        alone = self.steps.dim == 1
        angles = (0.0, math.pi, math.pi) if alone else (apart / 2, -apart / 2, math.pi)
        gain = math.expm1(self.steps.local_epsilon)
        across = np.zeros(1) if alone else places
        beside = np.ones((1, 1)) if alone else within
        likely = []
        for angle in angles:
            along = np.add.outer(places * math.cos(angle), across * math.sin(angle))
            found = self._looked_up(along).reshape(*within.shape, *beside.shape)
            likely.append(1 + gain * np.einsum("anbm,an,bm->ab", found, within, beside).ravel())
        masses = np.outer(mass, np.ones(1) if alone else mass).ravel()
        x, other, z = (each / (masses @ each) for each in likely)
        # 6.0: louder ones have steps in the outermost cells, in which the means are rough
        lost = 1e-5 if self.local_epsilon <= 6.0 else 2e-3
        return diluted(read_coarsely(x / z - 1, other / z - 1, masses * z), 1 - lost)


def _directions(rows: Tensor) -> Tensor:
    """Float64 rows that are not zero, divided in place by their lengths, whose squares may be no floats."""
    rows.div_(rows.abs().amax(dim=-1, keepdim=True))
    return rows.div_(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))


@lru_cache(maxsize=256)
def _seed_law(law: Callable[..., StepDensity], *, local_epsilon: float, dim: int) -> SeedLaw:
    return SeedLaw.of(law, local_epsilon=local_epsilon, dim=dim)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedReports(HalfSpaceReports):
    """One seed of 128 bits per client on an l2 ball, with the error of the mechanism it compresses.

    The client draws seeds and keeps the first that passes a test: always if the vector that it names is where
    the client's own law is densest, and with a probability in proportion elsewhere. How many seeds that takes
    does not depend on the record, and neither does it tell which seed was kept. The server expands seeds with
    ChaCha20, so ε0 rests on it: no record may be known whose mean density over all 2^128 seeds is off.

    Source: Feldman, Talwar 2021, "Lossless compression of efficient private local randomizers".

    An ε0 above 10 is spent as 10, for which a client looks at some 2,000 seeds.

    Attributes:
        tries: look at exactly so many seeds, which takes the same time in every report, and send a random one
            if none passes: with t times :attr:`expected_tries` that has probability e^−t, and the variance
            grows by about twice that share. None looks until one passes.
    """

    tries: Annotated[int, whole_number(at_least=1, at_most=1 << 24)] | None = None

    @cached_property
    def _searched(self) -> SeedLaw:
        return _seed_law(type(self)._law, local_epsilon=self.local_epsilon, dim=self.dim)

    @cached_property
    @override
    def parameters(self) -> StepDensity:
        missed = 0.0 if self.tries is None else (1 - 1 / self.expected_tries) ** self.tries
        return self._searched.reports(missed)

    @property
    def expected_tries(self) -> float:
        """How many seeds a client looks at, on average, if ``tries`` is None."""
        return self._searched.expected_tries

    @override
    def blanket(self) -> Blanket:
        return self._searched.blanket

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout(32, SEED_WORDS),))

    @override
    def sum(self, reports: Reports) -> Tensor:
        (seeds,) = self.read_reports(reports, 1 << 32)
        return sum_expanded(seeds, dim=self.dim).mul_(self.scale).to(torch.float32)

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each seed over the uniform law, (reports,) float64, of a search without end."""
        (seeds,) = self.read_reports(reports, 1 << 32)
        row = x.detach().double()
        length = float(torch.linalg.vector_norm(row))
        if not bool(row.any()):
            return torch.zeros(len(seeds), dtype=torch.float64, device=seeds.device)
        along = (expand_all(seeds, dim=self.dim) @ _directions(row.clone())).cpu().numpy()
        lean, p = min(length / self.radius, 1.0), self._searched.steps
        inside = self._searched.share(along) * (1 + lean) / 2 + self._searched.share(-along) * (1 - lean) / 2
        density = p.plain_probability * (1 + math.expm1(p.local_epsilon) * inside)
        return torch.from_numpy(np.log(density)).to(seeds.device)

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        count, lengths = x.num_rows, norms.double().cpu()
        signs = self._signs((lengths / self.radius).clamp(max=1.0), randomness).unsqueeze(1)
        seeds = draw_seeds(count, randomness=randomness)  # what a row of zeros sends
        for start, stop in spans(count, width=self.dim, device=x.device):
            part = x.narrow(start, stop).dense().to("cpu", torch.float64, copy=True)
            part.masked_fill_((lengths[start:stop] == 0).unsqueeze(1), 1.0)
            part = _directions(part).mul_(signs[start:stop])
            for place, direction in enumerate(part.numpy(), start):
                found = self._search(direction, randomness)  # of zeros, too, so that they take as long
                if found is not None and lengths[place] > 0:
                    seeds[place] = found
        return self.layout.reports(seeds.to(x.device))

    def _search(self, direction: Floats, randomness: Randomness) -> Tensor | None:
        """The first seed that passes; None if there is none in so many tries, of which none is left out."""
        left = self.tries
        found: Tensor | None = None
        while left is None or left > 0:
            count = 16 if left is None else min(left, 1 << 12)  # drawn at once
            seeds = draw_seeds(count, randomness=randomness)
            drawn = (randomness.words(count) & (WHOLE - 1)).tolist()
            for seed, key, number in zip(seeds, keys(seeds), drawn, strict=True):
                passes = number < self._searched.accepted(float(expand(key, self.dim) @ direction))
                if passes and found is None:
                    found = seed
                    if left is None:
                        return found
            left = None if left is None else left - count
        return found

    @override
    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        return self.sum_without_reports(x, norms, randomness)  # on every device: no search

    @override
    def _draw(self, norms: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor]:
        along, plain = super()._draw(norms, randomness)
        blur = randomness.normal(len(along), dtype=torch.float64).to(along.device)
        return along.add_(blur, alpha=_WIDTH).div_(math.hypot(1.0, _WIDTH)), plain


class PrivUnitGSeed(SeedReports):
    """:class:`~.PrivUnitG` in sixteen bytes: the most accurate report on an l2 ball for its ε0."""

    name: ClassVar[str] = "privunit-g-seed"
    _law = staticmethod(optimal_privunit_g)


class BlanketMixedGaussianSeed(SeedReports):
    """:class:`~.BlanketMixedGaussian` in sixteen bytes: the least error for an ε after shuffling."""

    name: ClassVar[str] = "blanket-mixed-gaussian-seed"
    _law = staticmethod(mixed_half_spaces)
