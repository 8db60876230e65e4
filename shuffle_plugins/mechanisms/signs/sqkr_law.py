"""How many signs ``sqkr`` and ``l2-block`` send. Torch-free."""

from __future__ import annotations

from functools import lru_cache

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.sign_patterns_law import MAX_SIGNS, cap_blanket, cap_parameters


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
    """Blanket of ``sqkr`` and ``l2-block`` with their defaults: that of their patterns, as a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    return cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=False)
