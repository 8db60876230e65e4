"""Other people's shuffle accountants, called in their own checkouts. Nothing of theirs is kept here.

Every function takes the folder that holds the checkouts (and ``site-packages`` for installed ones) and a
setting, and returns what that code says. A checkout that is missing raises :class:`Unavailable`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from grid_settings import Setting
from scipy import optimize

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound

Answer = Callable[[Path, Setting], float]

_HALVINGS = 20
_CELLS = 30  # of a grid of losses, per standard deviation
_REACH = 9.0


class Unavailable(Exception):
    """A peer is not there, or cannot be imported."""


# -- apple/ml-shuffling-amplification -----------------------------------------------------------------


def clones_numerical(directory: Path, setting: Setting, *, upper: bool = True) -> float:
    module = _file(directory, "ml-shuffling-amplification/computeamplification.py")
    return float(
        module.numericalanalysis(
            setting.population, setting.local_epsilon, setting.delta, _HALVINGS, 100, upper
        )
    )


# -- wangsw/PrivacyAmplification ----------------------------------------------------------------------


def stronger_clones_numerical(directory: Path, setting: Setting) -> float:
    module = _file(directory, "PrivacyAmplification/unifiedamplification.py")
    e = math.exp(setting.local_epsilon)
    share = 1 / (e + 1)
    return float(
        module.amplificationUBCore(e, share, share, share, setting.population, setting.delta, _HALVINGS)
    )


def variation_ratio(directory: Path, setting: Setting, *, mechanism: str, options: Any = None) -> float:
    module = _file(directory, "PrivacyAmplification/unifiedamplification.py")
    p, beta, q0, q1 = module.computeUBParameters(setting.local_epsilon, mechanism, options)
    return float(module.amplificationUB(p, beta, q0, q1, setting.population, setting.delta, _HALVINGS))


def variation_ratio_delta(directory: Path, setting: Setting, *, categories: int, epsilon: float) -> float:
    """Its δ at ε, for K-ary response."""
    module = _file(directory, "PrivacyAmplification/unifiedamplification.py")
    p, beta, q0, q1 = module.computeUBParameters(setting.local_epsilon, "krr", categories)
    alpha = beta / (p - 1)
    return float(module.Delta(epsilon, alpha, alpha * p / q0, alpha * p / q1, setting.population, p))


# -- BorjaBalle/amplification-by-shuffling ------------------------------------------------------------


def blanket_inequality(directory: Path, setting: Setting, *, bound: str, mechanism: str) -> float:
    """``bound`` is Hoeffding or BennettExact; ``mechanism`` generic, 10-RR or Laplace."""
    bounds = _file(directory, "amplification-by-shuffling/shuffleddp/amplification_bounds.py")
    mechanisms = _file(directory, "amplification-by-shuffling/shuffleddp/mechanisms.py")
    randomizer = _balle_mechanism(mechanisms, mechanism, setting.local_epsilon)
    found = getattr(bounds, bound)(randomizer)
    return float(found.get_eps(setting.local_epsilon, setting.population, setting.delta))


# -- Optimal-amplification-bound ----------------------------------------------------------------------


def blanket_fft(directory: Path, setting: Setting, *, mechanism: str, near: float) -> float:
    """Their FFT of the blanket's sum, with NumPy standing in for CuPy.

    An evaluation takes so long that ε is read off a line through log δ at ``near`` and 1 % above.
    """
    folder = "Decomposition-Based-Optimal-Bounds-for-Shuffle-DP"
    sys.modules.setdefault("cupy", np)
    bounds = _file(directory, f"{folder}/amplification_bounds.py")
    mechanisms = _file(directory, f"{folder}/mechanisms.py")
    found = bounds.FFTbound(_balle_mechanism(mechanisms, mechanism, setting.local_epsilon))
    points = (near, 1.01 * near)
    first, second = (
        math.log(found.get_delta(epsilon, setting.local_epsilon, setting.population)) for epsilon in points
    )
    return near * (1 + 0.01 * (math.log(setting.delta) - first) / (second - first))


# -- DPBayes/numerical-shuffler-experiments -----------------------------------------------------------


def fourier_clones(directory: Path, setting: Setting) -> float:
    """Their privacy loss law of the 2022 pair, composed by FFT as their script does; ε by bisection."""
    path = _path(directory, "numerical-shuffler-experiments/clones_comparison_fig1/delta_shuffler_fa.py")
    points, reach = 10**7, 20.0
    law, grid, error = _functions_of(path)["get_omega"](
        setting.population, setting.num_steps, setting.local_epsilon, points, reach
    )
    law = np.fft.irfft(np.fft.rfft(np.roll(law, points // 2)) ** setting.num_steps, n=points)
    law = np.roll(law, -(points // 2))

    def excess(epsilon: float) -> float:
        above = grid > epsilon
        return float(-np.sum(np.expm1(epsilon - grid[above]) * law[above])) + error - setting.delta

    return float(optimize.brentq(excess, 0.0, 0.9 * reach, rtol=1e-6))


# -- Antonious-Grigis/Shuffled-Model-… ----------------------------------------------------------------


def subsampled_rdp(directory: Path, setting: Setting) -> float:
    folder = "Shuffled-Model-of-Differential-Privacy-in-Federated-Learning"
    module = _file(directory, f"{folder}/privacy_computation.py")
    return float(
        module.optimize_RDP_To_DP(
            setting.delta,
            1e-3,
            setting.local_epsilon,
            setting.population,
            setting.sampling_rate,
            setting.num_steps,
            module.RDP_comp,
        )
    )


# -- spliew/shuffgauss --------------------------------------------------------------------------------


def shuffled_gaussian_rdp(directory: Path, setting: Setting, *, sigma: float, largest_order: int) -> float:
    with _search(_path(directory, "shuffgauss").parent / "shuffgauss", first=True):
        module = _import("shuffgauss")
    found = module.ShuffGaussRDPtoDP(sigma, setting.population, largest_order, verbose=False)
    found.get_shuff()
    return float(found.get_eps(setting.delta, setting.num_steps)[0])


# -- moshenfeld/random_allocation and PLD_accounting --------------------------------------------------


def shuffled_gaussian_clones(directory: Path, setting: Setting, *, sigma: float) -> float:
    """Its shuffle baseline: Gaussian reports as (ε0, δ0) ones, the clones theorem for those."""
    with _search(_path(directory, "site-packages"), first=False):
        scheme = _import("random_allocation.other_schemes.shuffle")
        structs = _import("random_allocation.comparisons.structs")
    return float(
        scheme.shuffle_epsilon_analytic(
            structs.PrivacyParams(sigma=sigma, num_steps=setting.population, delta=setting.delta),
            structs.SchemeConfig(),
        )
    )


def composed_realization(directory: Path, setting: Setting) -> float:
    """Our pair as its explicit loss law; T epochs of one round each."""
    with _search(_path(directory, "site-packages"), first=False):
        module = _import("PLD_accounting")
    cell, pmf = _exact_profile(setting)
    law = module.dp_accounting_pmf_to_pld_realization(pmf=pmf)
    config = module.AllocationSchemeConfig(loss_discretization=cell, tail_truncation=1e-3 * setting.delta)
    return float(
        module.general_allocation_epsilon(
            delta=setting.delta,
            num_steps=1,
            num_selected=1,
            num_epochs=setting.num_steps,
            remove_realization=law,
            add_realization=law,
            config=config,
        )
    )


# -- google/differential-privacy: dp-accounting -------------------------------------------------------


def connected_dots(_: Path, setting: Setting) -> float:
    """Our pair's exact profile, its pessimistic loss law and self-composition."""
    _, pmf = _exact_profile(setting)
    composed = PrivacyLossDistribution(pmf).self_compose(setting.num_steps)
    return float(composed.get_epsilon_for_delta(setting.delta))


@lru_cache(maxsize=1)
def _exact_profile(setting: Setting) -> tuple[float, Any]:
    """(cell, mass function) of one round's generic pair by connecting the dots of δ(ε)."""
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=setting.local_epsilon,
            population=setting.population,
            cohort=setting.cohort,
            channel_fixed=True,
        )
    )
    slope = accountant.delta(0.0).upper
    deviation = slope * math.sqrt(2 * math.pi)  # of a loss that is nearly normal
    cell = deviation / _CELLS
    edge = min(math.ceil(_REACH * _CELLS), math.ceil(setting.local_epsilon / cell))
    positive = np.array([accountant.delta(i * cell).upper for i in range(edge + 1)])
    # The pair is symmetric: δ(−ε) = 1 − e^−ε + e^−ε·δ(ε).
    losses = cell * np.arange(1, edge + 1)
    negative = -np.expm1(-losses) + np.exp(-losses) * positive[1:]
    profile = np.concatenate([negative[::-1], positive])
    return cell, pld_pmf.create_pmf_pessimistic_connect_dots(cell, np.arange(-edge, edge + 1), profile)


# -- finding them -------------------------------------------------------------------------------------


def _path(directory: Path, relative: str) -> Path:
    path = directory / relative
    if not path.exists():
        raise Unavailable(f"{relative} is not under {directory}")
    return path


@lru_cache(maxsize=32)
def _file(directory: Path, relative: str) -> ModuleType:
    """A module by its file, under a name of its own: several peers call theirs alike."""
    path = _path(directory, relative)
    spec = spec_from_file_location("peer_" + relative.replace("/", "_").removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise Unavailable(f"{path} is no Python module")
    module = module_from_spec(spec)
    _guarded(lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


@lru_cache(maxsize=8)
def _functions_of(path: Path) -> dict[str, Any]:
    """Imports and functions of a script that would run an experiment if it were imported."""
    tree = ast.parse(path.read_text())
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    tree.body = [node for node in tree.body if isinstance(node, kept)]
    names: dict[str, Any] = {}
    _guarded(lambda: exec(compile(tree, str(path), "exec"), names))
    return names


@contextlib.contextmanager
def _search(folder: Path, *, first: bool) -> Any:
    """Look for modules in a folder too, before or after everywhere else."""
    sys.path.insert(0 if first else len(sys.path), str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import(name: str) -> ModuleType:
    return _guarded(lambda: import_module(name))


def _guarded(load: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return load()
    except ImportError as error:
        raise Unavailable(str(error)) from error


def _balle_mechanism(module: ModuleType, name: str, local_epsilon: float) -> Any:
    if name == "10-RR":
        return module.RRMechanism(local_epsilon, 10)
    return module.LaplaceMechanism(local_epsilon) if name == "Laplace" else module.LDPMechanism(local_epsilon)
