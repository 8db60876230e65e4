"""δ of small histograms whose counts have noise of a known law, by all datasets."""

import itertools
import math

import numpy as np


def profile(p, q, epsilon):
    """δ at ε of two laws on the same outcomes."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def worst_deltas(noise, *, clients, levels):
    """The largest δ at each ε over all pairs of neighbours, by ε; three categories, each with this noise."""
    worst = dict.fromkeys(levels, 0.0)
    law = [np.concatenate([np.zeros(k), noise, np.zeros(clients - k)]) for k in range(clients + 1)]
    for held in itertools.combinations_with_replacement(range(3), clients - 1):
        others = [held.count(category) for category in range(3)]
        for mine, yours in itertools.permutations(range(3), 2):
            p, q = (
                np.multiply.outer(*(law[others[c] + (c == own)] for c in (mine, yours)))
                for own in (mine, yours)
            )  # the third count has the same law on both sides
            for epsilon in levels:
                worst[epsilon] = max(worst[epsilon], profile(p, q, epsilon))
    return worst
