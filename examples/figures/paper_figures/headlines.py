"""The papers' headline ratios: as published, as reproduced, and beside what this package certifies."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paper_figures import bounds
from paper_figures.bounds import Bound, Question
from paper_figures.data import NEIGHBOURING_RELATION, Role, rounded
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.accounting.published import compose_renyi, divergences


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """One claim: that a bound saves a factor over a baseline.

    Attributes:
        claim: the printed factor and where.
        published_ratio: the factor.
        question: the setting.
        bound: the bound praised.
        baseline: what it is compared with.
        reading: how this row reads the claim.
        sampling: Poisson, or None for k of n and full participation.
    """

    claim: str
    published_ratio: float
    question: Question
    bound: Bound
    baseline: Bound
    reading: str
    sampling: Sampling | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadlineRow:
    """A headline in numbers; ε in nats at the setting's δ, replace-one neighbours."""

    claim: str
    published_ratio: float
    reading: str
    setting: dict[str, float | int]
    bound: str
    bound_epsilon: float
    baseline: str
    baseline_epsilon: float
    reproduced_ratio: float
    attained_epsilon: float
    certified_epsilon: float
    bound_over_certified: float
    baseline_over_certified: float


def _poisson_as_printed(question: Question) -> float:
    def curve(orders: bounds.Vector) -> bounds.Vector:
        return divergences.first_shuffle_rdp(
            orders=orders, local_epsilon=question.local_epsilon, cohort=question.cohort, split=0.5
        )

    return compose_renyi(
        curve=curve,
        local_epsilon=question.local_epsilon,
        population=question.population,
        cohort=question.cohort,
        num_steps=question.num_steps,
        delta=question.delta,
        sampling=Sampling.POISSON,
    )


_POISSON_AS_PRINTED = Bound(
    name="shuffle RDP, Poisson sampling, c = 1/2",
    role=Role.NEITHER,
    source="Girgis et al. 2021 (CCS), Thm 5.3.1 as printed, Zhu and Wang 2019",
    epsilon=_poisson_as_printed,
)
_SUBSAMPLED = Question(local_epsilon=2.0, population=10**6, cohort=10**3, num_steps=10**5, delta=1e-8)
_EVERYBODY = Question(local_epsilon=0.5, population=10**6, cohort=10**6, num_steps=10**5, delta=1e-8)

_CLAIM_14, _CLAIM_2_5 = "14× (subsampled paper)", "2.5× (subsampled paper, NeurIPS)"
_CLAIM_8, _CLAIM_11 = "8× (CCS paper, thesis)", "11× (thesis, Poisson)"

HEADLINES: tuple[Headline, ...] = (
    Headline(
        claim=_CLAIM_14,
        published_ratio=14,
        question=_SUBSAMPLED,
        bound=bounds.SUBSAMPLED_RDP,
        baseline=bounds.CLONES_OR_NOTHING,
        reading="clones closed form, silent at k = 1000: no shuffling",
    ),
    Headline(
        claim=_CLAIM_14,
        published_ratio=14,
        question=_SUBSAMPLED,
        bound=bounds.SUBSAMPLED_RDP,
        baseline=bounds.CLONES_NUMERICAL,
        reading="clones numerically",
    ),
    Headline(
        claim=_CLAIM_2_5,
        published_ratio=2.5,
        question=_SUBSAMPLED,
        bound=bounds.SUBSAMPLED_RDP,
        baseline=bounds.SHUFFLE_RDP_AS_PRINTED,
        reading="c = 1/2, sampling theorem in full",
    ),
    Headline(
        claim=_CLAIM_2_5,
        published_ratio=2.5,
        question=_SUBSAMPLED,
        bound=bounds.SUBSAMPLED_RDP,
        baseline=bounds.SHUFFLE_RDP,
        reading="best c, sampling theorem in full",
    ),
    Headline(
        claim=_CLAIM_2_5,
        published_ratio=2.5,
        question=_SUBSAMPLED,
        bound=bounds.SUBSAMPLED_RDP,
        baseline=bounds.SHUFFLE_RDP_BLUNT,
        reading="c = 1/2, sharper sampling branch left out",
    ),
    Headline(
        claim=_CLAIM_8,
        published_ratio=8,
        question=_EVERYBODY,
        bound=bounds.SHUFFLE_RDP_AS_PRINTED,
        baseline=bounds.CLONES,
        reading="c = 1/2, clones closed form",
    ),
    Headline(
        claim=_CLAIM_8,
        published_ratio=8,
        question=_EVERYBODY,
        bound=bounds.SHUFFLE_RDP_AS_PRINTED,
        baseline=bounds.CLONES_NUMERICAL,
        reading="c = 1/2, clones numerically",
    ),
    Headline(
        claim=_CLAIM_8,
        published_ratio=8,
        question=_EVERYBODY,
        bound=bounds.SHUFFLE_RDP,
        baseline=bounds.CLONES_NUMERICAL,
        reading="best c, clones numerically",
    ),
    Headline(
        claim=_CLAIM_8,
        published_ratio=8,
        question=_EVERYBODY,
        bound=bounds.SHUFFLE_RDP,
        baseline=bounds.CLONES_SIMPLE,
        reading="best c, clones numerically, simple strong composition",
    ),
    *(
        Headline(
            claim=_CLAIM_11,
            published_ratio=11,
            question=replace(_SUBSAMPLED, local_epsilon=local_epsilon),
            bound=_POISSON_AS_PRINTED,
            baseline=baseline,
            reading=f"ε0 = {local_epsilon:g}, {called}",
            sampling=Sampling.POISSON,
        )
        for local_epsilon, baseline, called in (
            (0.5, bounds.CLONES_OR_NOTHING, "clones closed form"),
            (1.0, bounds.CLONES_OR_NOTHING, "clones closed form, silent: no shuffling"),
            (2.0, bounds.CLONES_OR_NOTHING, "clones closed form, silent: no shuffling"),
            (1.0, bounds.CLONES_NUMERICAL, "clones numerically"),
        )
    ),
)


def compute(headline: Headline) -> HeadlineRow:
    """The numbers of one headline."""
    bound, baseline = headline.bound.epsilon(headline.question), headline.baseline.epsilon(headline.question)
    attained, certified = bounds.certified(headline.question, sampling=headline.sampling)
    return HeadlineRow(
        claim=headline.claim,
        published_ratio=headline.published_ratio,
        reading=headline.reading,
        setting=asdict(headline.question),
        bound=headline.bound.name,
        bound_epsilon=bound,
        baseline=headline.baseline.name,
        baseline_epsilon=baseline,
        reproduced_ratio=baseline / bound,
        attained_epsilon=attained,
        certified_epsilon=certified,
        bound_over_certified=bound / certified,
        baseline_over_certified=baseline / certified,
    )


def save_rows(rows: list[HeadlineRow], path: Path) -> None:
    """Write the rows as JSON, six significant digits."""
    entries = [
        {key: rounded(value) if isinstance(value, float) else value for key, value in asdict(row).items()}
        for row in rows
    ]
    content = {"neighbouring_relation": NEIGHBOURING_RELATION, "rows": entries}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(rows: list[HeadlineRow]) -> str:
    """The rows in Markdown, as docs/reference/figures.md shows them."""
    lines = [
        "| claim | read as | baseline ε | published ε | reproduced | attained to certified ε, this package "
        "| published / certified | baseline / certified |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.claim} | {row.reading} | {row.baseline_epsilon:.3g} | {row.bound_epsilon:.3g} "
        f"| **{_factor(row.reproduced_ratio)}** | {row.attained_epsilon:.3g} to {row.certified_epsilon:.3g} "
        f"| {_factor(row.bound_over_certified)} | {_factor(row.baseline_over_certified)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _factor(value: float) -> str:
    return f"{value:.3g}×"
