"""How long the block of ``linf-block`` is. Torch-free."""

from __future__ import annotations

from functools import lru_cache

from shuffle_plugins.accounting import Atoms, Blanket, diluted
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.sign_patterns_law import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    cap_blanket,
    cap_parameters,
    three_patterns,
)

_DEFAULT_MOST_BITS = 15  # of a report, unless one coordinate takes more


def block_count(*, dim: int, signs: int) -> int:
    """Blocks of that many coordinates, the last one padded: ceil(dim/signs)."""
    return -(-dim // signs)


def report_bits(*, dim: int, signs: int) -> int:
    """ceil(log2 of the number of blocks) for which block, and its signs."""
    return (block_count(dim=dim, signs=signs) - 1).bit_length() + signs


def best_block(*, local_epsilon: float, dim: int, max_bits: int | None = None) -> int:
    """Length of block, up to 20, of least variance: of least ceil(dim/s)/g_s², shortest first.

    Args:
        local_epsilon: ε0 in nats.
        dim: length of a vector.
        max_bits: most bits of a report; by default 15, or what one coordinate takes if that is more.

    Raises:
        ValueError: if an argument is out of range, or no report has so few bits.
    """
    checks.local_epsilon(local_epsilon)
    one = report_bits(dim=checks.dim(dim), signs=1)
    limit = max(_DEFAULT_MOST_BITS, one) if max_bits is None else checks.whole("max_bits", max_bits)
    return _best_block(local_epsilon, dim, limit)


@lru_cache(maxsize=1024)
def _best_block(local_epsilon: float, dim: int, limit: int) -> int:
    lengths = range(1, min(dim, MAX_SIGNS) + 1)
    allowed = [s for s in lengths if report_bits(dim=dim, signs=s) <= limit]
    if not allowed:
        least = min(report_bits(dim=dim, signs=s) for s in lengths)
        raise ValueError(f"a report on {dim} coordinates takes at least {least} bits, got max_bits={limit}")

    def cost(signs: int) -> float:
        gain = cap_parameters(local_epsilon=local_epsilon, signs=signs).gain
        return block_count(dim=dim, signs=signs) / gain**2

    return min(allowed, key=cost)


def block_blanket(*, local_epsilon: float, dim: int, signs: int) -> Blanket:
    """Blanket of ``linf-block`` with blocks of that many coordinates.

    Rows whose blocks all have one pattern make the lower bound. A last block that is padded, and so has
    random signs for any row, is read as telling nothing.

    Raises:
        ValueError: if an argument is out of range.
    """
    whole = (dim // signs) / block_count(dim=dim, signs=signs)
    instances: tuple[Atoms, ...] = ()
    if whole > 0 and signs > 1 and local_epsilon < LOUDEST_EXACT:
        instances = (diluted(three_patterns(local_epsilon=local_epsilon, signs=signs), whole),)
    return cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=dim % signs == 0, instances=instances)
