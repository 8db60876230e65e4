"""How exact the accountant's numerics are: the same pairs, composed from below."""

from __future__ import annotations

from shuffle_plugins.accounting.accountant import ShuffleAccountant, resolution_of
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.rounds.round import Round


def pair_epsilon_interval(accountant: ShuffleAccountant, delta: float) -> tuple[float, float]:
    """Between which values the exact ε of the dominating pair lies: the error of the numerics alone.

    Pairs other than counts (envelopes over datasets, slots of many weights) are bounded from above only;
    with them in the history the lower end is what a real instance attains.

    Raises:
        ValueError: as :meth:`ShuffleAccountant.epsilon`.
    """
    found = accountant.epsilon(delta)
    counts: dict[Round, int] = {}
    for each, steps in accountant.history:
        counts[each] = counts.get(each, 0) + steps
    if not counts:
        return 0.0, 0.0
    resolution = resolution_of(counts)
    laws = [law for r in counts if (law := r.upper_losses_from_below(resolution)) is not None]
    if any(r.replacement_distance for r in counts) or len(laws) < len(counts):
        return found.lower, found.upper
    below = LossComposition(laws, list(counts.values())).epsilon(delta)
    return min(below, found.upper), found.upper
