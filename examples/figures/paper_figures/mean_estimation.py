"""Girgis's thesis (UCLA 2023), Figure 3.2: error of mean estimation, local and with a shuffler per message.

In (b) and (c) every message of a report goes to a shuffler of its own: m·s shuffles of n reports, one for
each sign, which are composed. The thesis does not print the number of levels of (c), nor its clipping radius;
the radius here is one that no coordinate of any client exceeds, but for once in 100 rotations (sub-Gaussian
bound, β = 0.01). Beside it stand Kashin representations in 1,024 coefficients (its Remark 3.6.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from paper_figures.data import Curve, FigureData, Panel, ParametersFrom, Role
from shuffle_plugins.accounting import (
    Blanket,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_local_epsilon,
    epsilon_from_rdp,
)
from shuffle_plugins.accounting.published import divergences, shuffles
from shuffle_plugins.compressors import KashinFrame
from shuffle_plugins.mechanisms import blanket, get
from shuffle_plugins.mechanisms.bit_planes import BitPlanes, SampledPlan
from shuffle_plugins.mechanisms.privunit import optimal_privunit

_SOURCE = "Girgis, thesis (UCLA 2023)"
_LEVELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
_CLIENTS = 1000
_DELTA = 1e-5
_HALF = 0.5  # radius of the interval, so that its length is 1
_SCALAR_TARGETS = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5)
_VECTOR_TARGETS = (0.8, 1.2, 1.6, 2.0, 2.4)
_DIM, _PADDED = 300, 512
_OVERSIZED = 0.01
_HALVINGS = 14
_QUIETEST, _LOUDEST = 0.005, 40.0  # per sample
_LOUDEST_REPORT = 500.0
_ORDERS = np.unique(np.geomspace(2, 512, 60).round())

_CLOSED_FORM = "Feldman et al. 2021, Thm 3.1 (the thesis's (6.10)), or no amplification"

Epsilon = Callable[[BitPlanes], float]


def figure_3_2() -> FigureData:
    return FigureData(
        name="thesis-3.2",
        title="Mean squared error of the estimated mean",
        source=f"{_SOURCE}, Figure 3.2",
        panels=(_local_panel(), _scalar_panel(), _vector_panel()),
    )


def _local_panel() -> Panel:
    def printed(levels: int) -> Callable[[float], float]:
        return lambda local_epsilon: float(
            get(
                "linf-bit-planes",
                local_epsilon=local_epsilon,
                dim=1,
                radius=_HALF,
                levels=levels,
                samples=1,
                constants="thesis",
            ).worst_variance
        )

    def built(name: str) -> Callable[[float], float]:
        return lambda e0: float(get(name, local_epsilon=e0, dim=1, radius=_HALF).worst_variance)

    curves = [
        (f"thesis, m = {levels}", f"{_SOURCE}, Thm 3.5.1, exact variance", printed(levels))
        for levels in (1, 2, 3, 4)
    ]
    curves += [
        ("Laplace", "2/ε0²", built("laplace")),
        ("bit planes, this package", "exact thresholds, best m", built("linf-bit-planes")),
        ("PrivUnit", "at d = 1 binary response", built("privunit")),
    ]
    return Panel(
        title="(a) local, d = 1, n = 1",
        x_name="ε0",
        y_name="mean squared error",
        x=_LEVELS,
        curves=tuple(
            Curve(name=name, role=Role.NEITHER, source=source, values=tuple(map(value, _LEVELS)))
            for name, source, value in curves
        ),
        parameters={"dim": 1, "population": 1, "samples": 1, "radius": _HALF},
        parameters_from=ParametersFrom.CAPTION,
        log_x=False,
        y_range=(1e-3, 100.0),
    )


def _scalar_panel() -> Panel:
    def multi(levels: int, epsilon: Epsilon) -> Callable[[float], float]:
        return lambda target: _multi_message(
            target=target, dim=1, levels=levels, samples=1, radius=_HALF, epsilon=epsilon
        )

    curves = [
        (f"multi-message, m = {levels}, {whose}", source, multi(levels, epsilon))
        for levels in (4, 6)
        for whose, source, epsilon in (
            ("thesis RDP", f"{_SOURCE}, Thms 3.5.2 and 5.3.1", _by_thesis),
            ("our accounting", "counted bits, docs/proofs/accounting.md", _by_bits),
        )
    ]
    curves += [
        ("Laplace, clones", "Feldman et al. 2021, Thm 3.1, numerical", _clones(_laplace_error)),
        ("Laplace, clones closed form", _CLOSED_FORM, _closed_form(_laplace_error)),
        ("Laplace, our accounting", "its own blanket", _certified("laplace", _laplace_error, dim=1)),
    ]
    return _shuffled_panel("(b) shuffled, d = 1, n = 1000", _SCALAR_TARGETS, curves, dim=1)


def _vector_panel() -> Panel:
    frame = KashinFrame(dim=_DIM, seed=0)
    kashin = frame.level / math.sqrt(frame.size)

    def multi(samples: int, dim: int, radius: float, epsilon: Epsilon) -> Callable[[float], float]:
        return lambda target: min(
            _multi_message(
                target=target, dim=dim, levels=levels, samples=samples, radius=radius, epsilon=epsilon
            )
            for levels in (1, 2, 3)
        )

    thesis, ours = f"{_SOURCE}, Thms 3.6.2 and 5.3.1", "blanket pair, docs/proofs/accounting.md"
    rotated = _rotated_radius()
    curves = [
        ("multi-message, s = 200, thesis RDP", thesis, multi(200, _PADDED, rotated, _by_thesis)),
        ("multi-message, s = 250, thesis RDP", thesis, multi(250, _PADDED, rotated, _by_thesis)),
        ("multi-message, s = 250, our accounting", ours, multi(250, _PADDED, rotated, _by_blanket)),
        ("Kashin, s = 500, thesis RDP", thesis, multi(500, frame.size, kashin, _by_thesis)),
        ("Kashin, s = 500, our accounting", ours, multi(500, frame.size, kashin, _by_blanket)),
    ]
    curves += [
        ("PrivUnit, clones", "Feldman et al. 2021, Thm 3.1, numerical", _clones(_privunit_error)),
        ("PrivUnit, clones closed form", _CLOSED_FORM, _closed_form(_privunit_error)),
        ("PrivUnit, our accounting", "its own blanket", _certified("privunit", _privunit_error, dim=_DIM)),
    ]
    return _shuffled_panel("(c) shuffled, d = 300, n = 1000", _VECTOR_TARGETS, curves, dim=_DIM)


def _shuffled_panel(
    title: str,
    targets: tuple[float, ...],
    curves: list[tuple[str, str, Callable[[float], float]]],
    *,
    dim: int,
) -> Panel:
    drawn = tuple(
        Curve(name=name, role=Role.NEITHER, source=source, values=tuple(map(error, targets)))
        for name, source, error in curves
    )
    shown = [value for curve in drawn for value in curve.values if value is not None]
    return Panel(
        title=title,
        x_name="ε at δ = 1e-5",
        y_name="mean squared error",
        x=targets,
        curves=drawn,
        parameters={"dim": dim, "population": _CLIENTS, "delta": _DELTA},
        parameters_from=ParametersFrom.CAPTION,
        log_x=False,
        y_range=(0.6 * min(shown), 1.6 * max(shown)),
    )


def _multi_message(
    *, target: float, dim: int, levels: int, samples: int, radius: float, epsilon: Epsilon
) -> float:
    """Error of the mean of n reports, as loud as the target lets them be."""
    plan = SampledPlan(levels=levels, samples=samples)
    quiet, loud = _QUIETEST * samples, min(_LOUDEST * samples, _LOUDEST_REPORT)
    for _ in range(_HALVINGS):
        middle = math.sqrt(quiet * loud)
        inside = epsilon(BitPlanes.within(middle, dim=dim, plan=plan)) <= target
        quiet, loud = (middle, loud) if inside else (quiet, middle)
    worst = BitPlanes.within(quiet, dim=dim, plan=plan).worst_variance
    return radius**2 * worst / _CLIENTS


def _shares(planes: BitPlanes) -> list[float]:
    """ε0 of one sign of each level."""
    return [math.log(t.high / t.low) for t in planes.thresholds]


def _by_thesis(planes: BitPlanes) -> float:
    total = sum(_renyi(share) for share in _shares(planes)) * planes.plan.samples
    return epsilon_from_rdp(orders=_ORDERS, rdp=total, delta=_DELTA)[0]


@lru_cache(maxsize=4096)
def _renyi(local_epsilon: float) -> np.ndarray:
    return divergences.first_shuffle_rdp(orders=_ORDERS, local_epsilon=local_epsilon, cohort=_CLIENTS)


def _by_bits(planes: BitPlanes) -> float:
    return _composed(planes, lambda share: Blanket.bit(share, exact=False))


def _by_blanket(planes: BitPlanes) -> float:
    return _composed(planes, lambda _: None)


def _composed(planes: BitPlanes, own: Callable[[float], Blanket | None]) -> float:
    accountant = ShuffleAccountant()
    for share in _shares(planes):
        known = own(share)
        accountant.step(
            ShuffleRound(
                local_epsilon=share,
                population=_CLIENTS,
                cohort=_CLIENTS,
                sampling="full",
                mechanism="generic" if known is None else "one sign",
                blanket=known,
                channel_fixed=True,
            ),
            num_steps=planes.plan.samples,
        )
    return accountant.epsilon(_DELTA, lower=False).upper


def _laplace_error(local_epsilon: float) -> float:
    return float(get("laplace", local_epsilon=local_epsilon, dim=1, radius=_HALF).worst_variance) / _CLIENTS


def _privunit_error(local_epsilon: float) -> float:
    return optimal_privunit(local_epsilon=local_epsilon, dim=_DIM).mean ** -2 / _CLIENTS


def _clones(error: Callable[[float], float]) -> Callable[[float], float]:
    def value(target: float) -> float:
        quiet, loud = 1e-4, math.log(_CLIENTS)
        for _ in range(2 * _HALVINGS):
            middle = (quiet + loud) / 2
            spent = shuffles.clone_pair(local_epsilon=middle, cohort=_CLIENTS).upper_epsilon(_DELTA)
            quiet, loud = (middle, loud) if spent <= target else (quiet, middle)
        return error(quiet)

    return value


def _closed_form(error: Callable[[float], float]) -> Callable[[float], float]:
    """By Theorem 3.1, or with no amplification where that allows more; at n = 1000 it ends at ε0 = 1.63."""
    reach = math.log(_CLIENTS / (16 * math.log(2 / _DELTA)))

    def value(target: float) -> float:
        quiet, loud = 1e-4, reach
        for _ in range(2 * _HALVINGS):
            middle = (quiet + loud) / 2
            spent = shuffles.clone_bound(local_epsilon=middle, cohort=_CLIENTS, delta=_DELTA)
            quiet, loud = (middle, loud) if spent <= target else (quiet, middle)
        return error(max(quiet, target))

    return value


def _certified(name: str, error: Callable[[float], float], *, dim: int) -> Callable[[float], float]:
    def value(target: float) -> float:
        return error(
            calibrate_local_epsilon(
                target_epsilon=target,
                delta=_DELTA,
                population=_CLIENTS,
                cohort=_CLIENTS,
                num_steps=1,
                sampling="full",
                mechanism=name,
                blanket_factory=lambda local_epsilon: blanket(name, local_epsilon=local_epsilon, dim=dim),
                channel_fixed=True,
            )
        )

    return value


def _rotated_radius() -> float:
    r"""Largest coordinate after a random rotation of a unit vector: √(2 log(2·size·n/β)/size)."""
    return math.sqrt(2 * math.log(2 * _PADDED * _CLIENTS / _OVERSIZED) / _PADDED)
