"""How many signs ``sqkr`` and ``l2-block`` send. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted
from shuffle_plugins.compressors import kashin_level, kashin_size, kashin_stretch
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.coefficients_law import flat_lean, mean_square
from shuffle_plugins.mechanisms.signs.sign_patterns_law import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
    spread_information,
)


def best_signs(*, local_epsilon: float, dim: int, among: tuple[int, ...] | None = None) -> int:
    """Number k of signs of largest k·gain², and so of least variance; fewest first.

    Args:
        local_epsilon: ε0 in nats.
        dim: length of a vector.
        among: numbers to choose from; 1, 2, …, up to 20 and dim by default.

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


def sqkr_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    """Blanket of ``sqkr`` with its defaults: that of its patterns, as a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    size, level = kashin_size(dim), kashin_level(dim)
    square = mean_square(level, stretch=kashin_stretch(dim, level=level))
    square = drawn_square(size=size, signs=signs, square=square)
    return patterns_blanket(local_epsilon=local_epsilon, signs=signs, level=level, square=square)


def l2_block_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    """Blanket of ``l2-block`` with its defaults: that of its patterns, as a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    size, level = kashin_size(dim), kashin_level(dim)
    whole = (size // signs) / -(-size // signs)
    return patterns_blanket(
        local_epsilon=local_epsilon,
        signs=signs,
        level=level,
        square=mean_square(level, stretch=kashin_stretch(dim, level=level)),
        whole=whole,
    )


def drawn_square(*, size: int, signs: int, square: float) -> float:
    """The mean square of the coefficients drawn if one is drawn of each of so many blocks, at most.

    Blocks of one coefficient less are drawn from more often.
    """
    return min(square * size / (signs * (size // signs)), 1.0)


def patterns_blanket(
    *, local_epsilon: float, signs: int, level: float, square: float, whole: float = 1.0
) -> Blanket:
    """Blanket of a pattern of coefficients of a public frame: the pattern's, as a bound, and what it tells.

    The lower bound is that of the records ±r·e_1, whose coefficients are flat: each is ±1/level of the
    largest one that is provided for.

    Args:
        local_epsilon: ε0 in nats.
        signs: in a pattern.
        level: how many times its average size a coefficient may have.
        square: mean square of the coefficients drawn, in units of the largest provided for, at most.
        whole: share of the blocks that are not padded with zeros.

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
    told = InformationBound.of_blanket(
        local_epsilon=local_epsilon, information=information, mass=blanket.mass
    )
    return replace(blanket, told=told)
