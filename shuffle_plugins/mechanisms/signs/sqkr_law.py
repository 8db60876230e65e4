"""How many signs ``sqkr`` and ``l2-block`` send, and the blankets of their reports. Needs no torch.

Both mechanisms represent a vector of the ℓ2 ball by D coefficients of absolute value at most
r_inf = level·r/√D, with r the radius. A client draws k coefficients, rounds each to a random sign of mean
coefficient/r_inf, and sends these k signs, the *pattern*, through ``sign_patterns_law``: patterns that agree
with the true one in enough places, the *cap*, are sent more often by a factor e^ε0. ``sqkr`` divides the
coefficients into k blocks and draws one of each; ``l2-block`` draws one block of k neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.coefficients_law import flat_lean
from shuffle_plugins.mechanisms.signs.sign_patterns_law import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
    spread_information,
)


def best_signs(*, local_epsilon: float, dim: int, among: tuple[int, ...] | None = None) -> int:
    """The number k of signs with the largest k·gain², for which the variance of a report is about least.

    The gain is the factor by which randomising shrinks the mean: E[sent sign] = gain · true sign. Of several
    equally good k the first in ``among`` is taken.

    Args:
        local_epsilon: ε0 of a report in nats, in [1e-9, 500].
        dim: length of a client's vector; not used if ``among`` is given.
        among: values of k to choose from, in [1, 20]; by default 1, 2, …, min(20, dim).

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.local_epsilon(local_epsilon)
    return _best_signs(local_epsilon, among or tuple(range(1, min(checks.dim(dim), MAX_SIGNS) + 1)))


@lru_cache(maxsize=1024)
def _best_signs(local_epsilon: float, among: tuple[int, ...]) -> int:
    def information(signs: int) -> float:
        return signs * cap_parameters(local_epsilon=local_epsilon, signs=signs).gain ** 2

    return max(among, key=information)


def drawn_square(*, size: int, signs: int, square: float) -> float:
    """An upper bound on the mean square of the coefficients that ``sqkr`` draws, one of each of k blocks.

    If k does not divide D, some blocks have one coefficient less than the others. Each of their coefficients
    is drawn more often, so the mean over drawn coefficients can be above the mean over all.

    Args:
        size: D, the number of coefficients of a vector.
        signs: k, the number of blocks, at most D.
        square: mean over all D of (coefficient/r_inf)², or an upper bound on it; in (0, 1].

    Returns:
        The bound, in units of r_inf²; in (0, 1].
    """
    return min(square * size / (signs * (size // signs)), 1.0)


def patterns_blanket(
    *, local_epsilon: float, signs: int, level: float, square: float, whole: float = 1.0
) -> Blanket:
    """The blanket of reports that send one pattern of k signs of coefficients, from above and from below.

    From above it holds for any records. It is the blanket of a pattern whose signs are certain. Beside it is
    a bound on the information (``Blanket.information_bound``), which often gives a much smaller ε, since a
    vector of the ℓ2 ball cannot have all coefficients at ±r_inf. There is no such bound for square = 1 or
    ε0 ≥ 42.

    From below (``Blanket.instances``) client 1 holds r·e_1 or −r·e_1, with e_1 the first unit vector. All of
    their coefficients are ±r/√D, that is ±r_inf/level. There is no such bound for ε0 ≥ 42, where
    probabilities in units of 2**-62 are too coarse.

    Args:
        local_epsilon: ε0 of a report in nats, in [1e-9, 500].
        signs: k, signs in a pattern, in [1, 20].
        level: r_inf·√D/r, the largest coefficient allowed over the size r/√D of coefficients that are all
            equal.
        square: upper bound on the mean of (coefficient/r_inf)² over the coefficients drawn; in (0, 1].
        whole: share of the blocks that have k coefficients; the others are padded with zeros. In [0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """
    instances: tuple[Atoms, ...] = ()
    if whole > 0 and local_epsilon < LOUDEST_EXACT:
        own = leaning_patterns(local_epsilon=local_epsilon, signs=signs, lean=flat_lean(level))
        instances = (diluted(own, whole),)
    blanket = cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=False, instances=instances)
    if square == 1 or local_epsilon >= LOUDEST_EXACT:
        return blanket
    information = spread_information(local_epsilon=local_epsilon, signs=signs, mean_square=square)
    bound = InformationBound.of_blanket(
        local_epsilon=local_epsilon, information=information, mass=blanket.mass
    )
    return replace(blanket, information_bound=bound)
