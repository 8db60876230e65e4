"""How many signs ``sqkr`` sends. Torch-free."""

from __future__ import annotations

from functools import lru_cache

from shuffle_plugins.accounting.blanket import Blanket, check_local_epsilon
from shuffle_plugins.mechanisms.hypercube_cap import MAX_SIGNS, cap_blanket, cap_parameters
from shuffle_plugins.mechanisms.parameters import check_dim


def best_signs(*, local_epsilon: float, dim: int) -> int:
    """Number k of signs, up to 20 and dim, of largest k·gain², and so of least variance; fewest first.

    Raises:
        ValueError: if an argument is out of range.
    """
    return _best_signs(check_local_epsilon(local_epsilon), min(check_dim(dim), MAX_SIGNS))


@lru_cache(maxsize=1024)
def _best_signs(local_epsilon: float, most: int) -> int:
    def information(signs: int) -> float:
        return signs * cap_parameters(local_epsilon=local_epsilon, signs=signs).gain ** 2

    return max(range(1, most + 1), key=information)


def sqkr_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    """Blanket of ``sqkr`` with its defaults: that of its patterns, as a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    return cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=False)
