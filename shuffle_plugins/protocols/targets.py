"""Checks on what all protocols are calibrated for."""

from __future__ import annotations

import math


def check_targets(
    *, epsilon: object, delta: object, num_steps: object, cohort: object, population: object
) -> None:
    """Check the arguments that every ``calibrated`` has.

    Raises:
        ValueError: if one is out of range.
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive finite number, got {epsilon!r}")
    if not (isinstance(delta, float) and 0 < delta < 1):
        raise ValueError(f"delta must be a number in (0, 1), got {delta!r}")
    if type(num_steps) is not int or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number, at least 1, got {num_steps!r}")
    if type(cohort) is not int or cohort < 2:
        raise ValueError(f"cohort must be a whole number, at least 2, got {cohort!r}")
    if population is not None:
        check_population(population, cohort=cohort)


def check_population(population: object, *, cohort: int) -> None:
    """Check of how many the clients of one sum are drawn.

    Raises:
        ValueError: if they are fewer.
    """
    if type(population) is not int or population < cohort:
        raise ValueError(
            f"population must be a whole number, at least the {cohort} clients of a sum, got {population!r}"
        )


def hiding(population: int, *, cohort: int, honest_fraction: float) -> int:
    """Of how many the clients of a sum are accounted to be drawn: a fraction of the population.

    Clients that are not honest may tell whether they were drawn. Should all of them not have been, the cohort
    was drawn from the honest ones.

    Args:
        population: of whom ``clients`` are drawn.
        clients: of one sum.
        honest_fraction: share of the population, and of each cohort, that is counted on.
    """
    return max(cohort, math.floor(honest_fraction * population))


def check_overhead(overhead: object) -> None:
    """Check a share of variance.

    Raises:
        ValueError: unless it is in (0, 1].
    """
    if isinstance(overhead, bool) or not isinstance(overhead, (int, float)) or not 0 < overhead <= 1:
        raise ValueError(f"overhead must be in (0, 1], got {overhead!r}")


def check_categories(categories: object) -> None:
    """Check a number of categories.

    Raises:
        ValueError: unless it is a whole number in [2, 2**53].
    """
    if type(categories) is not int or not 2 <= categories <= 1 << 53:
        raise ValueError(f"categories must be a whole number, at least 2, got {categories!r}")


def honest_clients(*, cohort: int, honest_fraction: float) -> int:
    """How many clients are counted on.

    Raises:
        ValueError: if an argument is out of range, or it is nobody.
    """
    if type(cohort) is not int or cohort < 2:
        raise ValueError(f"cohort must be a whole number, at least 2, got {cohort!r}")
    check_honest_fraction(honest_fraction)
    honest = math.floor(honest_fraction * cohort * (1 + 1e-12))
    if honest < 1:
        raise ValueError(f"honest_fraction={honest_fraction!r} of {cohort} clients is nobody")
    return honest


def check_honest_fraction(honest_fraction: object) -> None:
    """Check a share of clients.

    Raises:
        ValueError: unless it is a number in (0, 1].
    """
    number = isinstance(honest_fraction, (int, float)) and not isinstance(honest_fraction, bool)
    if not (number and 0 < honest_fraction <= 1):  # type: ignore[operator]
        raise ValueError(f"honest_fraction must be in (0, 1], got {honest_fraction!r}")


def check_clips(clip: object) -> None:
    """Check that nobody asks a sum to leave vectors as they are.

    Raises:
        ValueError: unless ``clip`` is true.
    """
    if not clip:
        raise ValueError("a sum always clips to its ball: leave clip as it is")
