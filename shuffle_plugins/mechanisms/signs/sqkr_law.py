"""How many signs ``sqkr`` and ``l2-block`` send. Torch-free."""

from __future__ import annotations

from functools import lru_cache

from shuffle_plugins.accounting import Atoms, Blanket, diluted
from shuffle_plugins.compressors import kashin_level, kashin_size
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.coefficients_law import flat_lean
from shuffle_plugins.mechanisms.signs.sign_patterns_law import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
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
    return patterns_blanket(local_epsilon=local_epsilon, signs=signs, level=kashin_level(dim))


def l2_block_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    """Blanket of ``l2-block`` with its defaults: that of its patterns, as a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    size = kashin_size(dim)
    whole = (size // signs) / -(-size // signs)
    return patterns_blanket(local_epsilon=local_epsilon, signs=signs, level=kashin_level(dim), whole=whole)


def patterns_blanket(*, local_epsilon: float, signs: int, level: float, whole: float = 1.0) -> Blanket:
    """Blanket of a pattern of coefficients of a public frame: the pattern's, as a bound.

    The lower bound is that of the records ±r·e_1, whose coefficients are flat: each is ±1/level of the
    largest one that is provided for.

    Args:
        local_epsilon: ε0 in nats.
        signs: in a pattern.
        level: how many times its average size a coefficient may have.
        whole: share of the blocks that are not padded with zeros.

    Raises:
        ValueError: if an argument is out of range.
    """
    instances: tuple[Atoms, ...] = ()
    if whole > 0 and local_epsilon < LOUDEST_EXACT:
        own = leaning_patterns(local_epsilon=local_epsilon, signs=signs, lean=flat_lean(level))
        instances = (diluted(own, whole),)
    return cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=False, instances=instances)
