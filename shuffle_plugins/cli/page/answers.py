"""What the page says of a setting: the accountant's answers, and those of other analyses beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import typer

from shuffle_plugins import accounting, mechanisms, planning
from shuffle_plugins.cli.options import GENERIC, Question
from shuffle_plugins.cli.page.settings import RefusedSetting, Setting

# A curve reaches so far on both sides of the setting, as factors; its points lie at those steps of each ten.
_REACH = {"population": 100.0, "cohort": 100.0, "local-epsilon": 10.0, "rounds": 100.0}
_STEPS = {"population": (1, 3), "cohort": (1, 3), "local-epsilon": (1, 2, 5), "rounds": (1, 3)}
_LARGEST = {"local-epsilon": 20.0, "rounds": 1e6}  # beyond, only the setting itself is a point
# Of more reports the numerical clone bounds add up so many terms that they take minutes and gigabytes.
_MOST_PUBLISHED = 10**10


def asks_published(setting: Setting) -> bool:
    """Whether published bounds take seconds, so that a page can wait for them."""
    return setting.participants()[1] <= _MOST_PUBLISHED


def bounds(setting: Setting, published: Sequence[str] = ()) -> accounting.Comparison:
    """The accountant's own bounds, and published ones of these names, where :func:`asks_published`.

    Raises:
        RefusedSetting: in the accountant's words, if the setting is out of range.
    """
    asked = replace(setting, over="rounds")
    try:
        _bounds(asked, ())
        return _bounds(asked, tuple(published) if asks_published(setting) else ())
    except typer.BadParameter as error:
        raise RefusedSetting(error.message) from error
    except ValueError as error:
        raise RefusedSetting(str(error)) from error
    except ArithmeticError as error:
        raise RefusedSetting(f"out of numerical reach: {error}") from error


# A slider that is moved back finds its answers there: a curve's points do not move with the setting.
@lru_cache(maxsize=8192)
def _bounds(asked: Question, published: tuple[str, ...]) -> accounting.Comparison:
    return _bounds(asked, published[:-1]).beside(published) if published else asked.compare()


def places(setting: Setting) -> tuple[float, ...]:
    """Where a curve has its points: the setting's own place first, then others, nearer ones earlier.

    Places that no round has, such as a cohort above the population, are left out.
    """
    own, reach = setting.place, _REACH[setting.over]
    most = min(own * reach, _LARGEST.get(setting.over, math.inf))
    if setting.over == "cohort":
        most = min(most, setting.population)
    least = own / reach
    if setting.over in ("cohort", "rounds"):
        least = max(least, 1.0)
    if setting.over == "population":
        least = max(least, setting.cohort or 2.0)
    found = {
        float(f"{step}e{power}")
        for power in range(math.floor(math.log10(least)), math.ceil(math.log10(max(most, least))) + 1)
        for step in _STEPS[setting.over]
    }
    ends = {most} if setting.over == "cohort" and own < most == setting.population else set()
    near = sorted((found | ends) - {own}, key=lambda place: abs(math.log(place / own)))
    return (own, *(place for place in near if least <= place <= most))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """ε at one place of the picture.

    Attributes:
        place: the value of what the picture runs over.
        found: the certified interval.
        local: what one client's reports cost if nobody is trusted, ε0·T.
        published: ε of published bounds that hold there, by name.
    """

    place: float
    found: accounting.EpsilonInterval
    local: float
    published: dict[str, float]


def point(setting: Setting, place: float, *, published: Sequence[str] = ()) -> Point | None:
    """ε with the picture's field at ``place``; None if the accountant refuses that."""
    there = setting.at(place)
    try:
        answer = bounds(there, published)
    except RefusedSetting:
        return None
    return Point(
        place=place,
        found=answer.interval,
        local=there.local_epsilon * there.rounds,
        published={each.name: each.epsilon for each in answer.bounds if each.name in published},
    )


def curve(setting: Setting, *, published: Sequence[str]) -> Iterator[tuple[Point, ...]]:
    """The picture's points in order of place, whenever one more is known; published bounds come last."""
    found: dict[float, Point] = {}
    for names in ((), tuple(published)) if published else ((),):
        for place in places(setting):
            one = point(setting, place, published=names)
            if one is not None:
                found[place] = one
            yield tuple(found[each] for each in sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralGaussian:
    """A trusted server that adds Gaussian noise of the same size, on the same rounds.

    Attributes:
        epsilon: its ε at δ for replace-one neighbours, rounded up.
        noise_multiplier: deviation of the noise in a coordinate of the sum, over the clipping norm.
    """

    epsilon: float
    noise_multiplier: float


def equally_noisy_gaussian(setting: Setting) -> CentralGaussian | str:
    """What a trusted server pays for noise of the mechanism's mean squared error, or why nothing compares.

    Clients hold vectors of an ℓ2 ball, as clipped gradients are. The sum of k reports then has error k·V,
    with V the largest variance of a report in the unit ball; the server's noise has k·V/d in each of the d
    coordinates. Neighbours are replace-one, so that a record moves the sum by twice the clipping norm.
    """
    if setting.mechanism == GENERIC or setting.dim is None:
        return "choose a mechanism for vectors: what noise the generic randomizer makes is not known"
    if mechanisms.kind_of(setting.mechanism) is mechanisms.Kind.CATEGORIES:
        return f"{setting.mechanism} takes categories, not vectors"
    if setting.sampling not in ("without-replacement", "full"):
        return "compared only where k of n are drawn, or everybody takes part"
    population, cohort = setting.participants()
    try:
        report = planning.report_error(
            setting.mechanism, local_epsilon=setting.local_epsilon, dim=setting.dim, radius=1.0, norm="l2"
        )
        multiplier = math.sqrt(cohort * report.variance / setting.dim)
        law = accounting.gaussian_losses(
            noise_multiplier=multiplier / 2,
            sampling_rate=1.0 if setting.adversary == "server" else cohort / population,
            resolution=accounting.FINE,
        )
        epsilon = accounting.LossComposition([law], [setting.rounds]).epsilon(setting.delta)
    except (ValueError, ArithmeticError) as error:
        return str(error)
    return CentralGaussian(epsilon=epsilon, noise_multiplier=multiplier)
