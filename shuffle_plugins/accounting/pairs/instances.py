r"""Datasets in which all other clients hold one record z: what they make of a report, exactly.

Against everybody else's law :math:`R_z`, a report y of the differing client has the gains
:math:`u = R_x(y)/R_z(y) - 1` and :math:`v = R_{x'}(y)/R_z(y) - 1`. Their law under :math:`R_z` gives the
round exactly: over k independent draws from :math:`R_z`

.. math:: dP/dF = 1 + \frac1n \sum u \qquad dQ/dF = 1 + \frac1n \sum v,

because client 1 stands in each of the k places with probability 1/n. Reports may be read coarsely first: that
leaks less, so it stays a lower bound. ``docs/proofs/accounting.md``, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats

Atoms = tuple[tuple[float, float, float], ...]
"""Triples (u, v, mass): the two gains of a report, and how likely it is under everybody else's record."""

_KEPT = 1 - 2e-4  # of the information, where reports are read coarsely
_MOST_READINGS = 400
_MOST_LISTED = 64
_ROUNDOFF = 1e-12


def two_level_atoms(*, local_epsilon: float, shares: Mapping[tuple[int, ...], float]) -> Atoms:
    """Of mechanisms whose reports are likely, by e^ε0, or not.

    Args:
        local_epsilon: ε0.
        shares: for each (a, b, c) how much of the blanket's mass is in reports that are likely for x if a,
            for x' if b, and for z if c. Where nothing is likely the mass follows from the others.
    """
    atoms: dict[tuple[float, float], float] = {}
    for (a, b, c), share in shares.items():
        if share <= 0 or not (a or b or c):
            continue
        gains = math.expm1((a - c) * local_epsilon), math.expm1((b - c) * local_epsilon)
        atoms[gains] = atoms.get(gains, 0.0) + share * math.exp(c * local_epsilon)
    return _completed(atoms)


def product_atoms(*, likely: Sequence[float], held: Sequence[int]) -> Atoms:
    """Of reports of several signs, each flipped by itself; x is all plus and x' all minus.

    Args:
        likely: for each sign, the probability that it is sent as it is; above 1/2.
        held: what z has for each: 1, −1, or 0 for a fair coin.
    """
    digits = 14 - math.ceil(math.log10(math.fsum(math.log(up / (1 - up)) for up in likely)))
    laws = {(0.0, 0.0): 1.0}
    for up, sign in zip(likely, held, strict=True):
        mean = 2 * up - 1
        other = (1 + sign * mean) / 2
        parts = [((1 + s * mean) / 2, (1 - s * mean) / 2, (other if s > 0 else 1 - other)) for s in (1, -1)]
        grown: dict[tuple[float, float], float] = {}
        for (u, v), mass in laws.items():
            for first, second, third in parts:
                # Kept as logarithms, so that equal products meet.
                key = (
                    round(u + math.log(first / third), digits),
                    round(v + math.log(second / third), digits),
                )
                grown[key] = grown.get(key, 0.0) + mass * third
        laws = grown
    gains = {(math.expm1(u), math.expm1(v)): mass for (u, v), mass in laws.items()}
    if len(gains) <= _MOST_LISTED:
        return _completed(gains)
    firsts, seconds = (np.array([pair[side] for pair in gains]) for side in (0, 1))
    return read_coarsely(firsts, seconds, np.array(list(gains.values())))


def diluted(atoms: Atoms, share: float) -> Atoms:
    """Of a mechanism whose report is, with probability ``share``, one of these, and else tells nothing."""
    if share >= 1:
        return atoms
    return _completed({(u, v): share * mass for u, v, mass in atoms if u or v})


def read_coarsely(u: Floats, v: Floats, mass: Floats) -> Atoms:
    """Reports of many gains, put together where u − v is nearly the same; at equal means.

    Args:
        u: gains, R_x/R_z − 1.
        v: gains, R_x'/R_z − 1.
        mass: under R_z; what is missing to one tells nothing.
    """
    score = u - v
    top, energy = float(np.abs(score).max()), float(mass @ score**2)
    for cells in np.unique(np.round(np.geomspace(4, _MOST_READINGS, 24))):
        index = np.rint(score * (cells / top)).astype(np.int64)
        index -= index.min()
        total, first, second = (
            np.bincount(index, weights=column).astype(np.float64) for column in (mass, mass * u, mass * v)
        )
        keep = total > 0
        total, first, second = total[keep], first[keep], second[keep]
        if float(((first - second) ** 2 / total).sum()) >= _KEPT * energy:
            break
    columns = zip((first / total).tolist(), (second / total).tolist(), total.tolist(), strict=True)
    return _completed({(a, b): m for a, b, m in columns})


def information(atoms: Atoms) -> float:
    """Variance of the privacy loss of one report, times the square of how many hide it."""
    return sum(mass * (u - v) * (u - v) for u, v, mass in atoms)  # infinite, not an error, at the largest ε0


def most_telling(candidates: Iterable[Atoms]) -> Atoms:
    """The one of the most :func:`information`."""
    return max(candidates, key=information)


def checked_atoms(atoms: Iterable[tuple[float, float, float]], *, within: float) -> Atoms:
    """One law's atoms as floats.

    Args:
        atoms: triples (u, v, mass).
        within: how far masses may be from one, and means from zero, relative to the gains.

    Raises:
        ValueError: if they are not the law of two gains of mean zero.
    """
    found = tuple((float(u), float(v), float(mass)) for u, v, mass in atoms)
    if not all(map(math.isfinite, (x for atom in found for x in atom))):
        raise ValueError("an instance's atoms must be finite numbers")
    if any(mass < 0 or min(u, v) < -1 for u, v, mass in found):
        raise ValueError("an instance's atom needs a mass that is not negative, and gains of at least -1")
    total = math.fsum(mass for _, _, mass in found)
    means = [math.fsum(atom[i] * atom[2] for atom in found) for i in (0, 1)]
    sizes = [math.fsum(abs(atom[i]) * atom[2] for atom in found) for i in (0, 1)]
    if abs(total - 1) > within or any(
        abs(mean) > within * (1 + size) for mean, size in zip(means, sizes, strict=True)
    ):
        raise ValueError(
            f"an instance's masses must sum to 1 and its gains have mean 0, got {total!r} and {means}: check "
            "that the atoms are (R_x/R_z − 1, R_x'/R_z − 1, R_z) and that none is missing"
        )
    return found


def _completed(atoms: Mapping[tuple[float, float], float]) -> Atoms:
    """With the mass of all other reports, read as one, such that no gain has a mean."""
    mass = math.fsum(atoms.values())
    found = [(u, v, m) for (u, v), m in atoms.items() if m > 0]
    left = 1 - mass
    if left > _ROUNDOFF:
        mean_u = math.fsum(u * m for u, _, m in found)
        mean_v = math.fsum(v * m for _, v, m in found)
        found.append((-mean_u / left, -mean_v / left, left))
    return tuple(found)
