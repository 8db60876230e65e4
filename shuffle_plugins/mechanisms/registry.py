"""All mechanisms and sums by name. Torch is imported only when one is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from shuffle_plugins.core import checks
from shuffle_plugins.core.extras import advised

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from shuffle_plugins.accounting import Blanket
    from shuffle_plugins.mechanisms.base import Mechanism, PrivateSum

ENTRY_POINT_GROUP = "shuffle_plugins.mechanisms"

Factory = Callable[..., "Mechanism | PrivateSum"]

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Kind(StrEnum):
    """What clients hold, and in what form they report it."""

    VECTORS = "vectors"
    """Local randomizers of vectors in a norm ball, one report a client: set by ``local_epsilon``."""

    CATEGORIES = "categories"
    """Frequency oracles, one report a client on its category: set by ``local_epsilon``."""

    SUMS = "sums"
    """Sums of vectors that many messages of each client make up together: set by ``noise_multiplier``."""


ONE_MESSAGE = (Kind.VECTORS, Kind.CATEGORIES)
"""Kinds of mechanisms that send one report a client, whose privacy is set by ``local_epsilon``."""


@dataclass(frozen=True)
class _Entry:
    factory: str | Factory | EntryPoint
    summary: str
    kind: Kind | None


_BUILT_IN = {
    Kind.VECTORS: {
        "binary-rr": "BinaryRandomizedResponse: unbiased randomized response of one number, 1 bit per report",
        "blanket-mixed-gaussian": "BlanketMixedGaussian: half-spaces of an l2 ball, made for shuffling",
        "blanket-mixed-gaussian-seed": "BlanketMixedGaussianSeed: blanket-mixed-gaussian in 128 bits",
        "l1-hadamard": "L1Hadamard: one Hadamard coefficient of an l1 (or lp, p < 2) ball, as a sign",
        "l2-bit-planes": "L2BitPlanes: bit planes of sampled coefficients of an l2 ball, spread evenly",
        "l2-block": "L2Block: one block of Kashin coefficients of an l2 ball, as a pattern of signs",
        "linf-bit-planes": "LInfBitPlanes: bit planes of an l-infinity ball, sampled and flipped within ε0",
        "linf-block": "LInfBlock: one block of coordinates of an l-infinity ball, as a pattern of signs",
        "linf-coordinate": "LInfCoordinate: one random coordinate of an l-infinity ball, as a sign",
        "discrete-gaussian": "DiscreteGaussian: exact discrete Gaussian noise on an l2 ball, (ε0, δ0)-LDP",
        "discrete-laplace": "DiscreteLaplace: exact discrete Laplace noise on an l1 ball, 12 bits each",
        "gaussian": "Gaussian: Gaussian noise on an l2 ball, (ε0, δ0)-LDP, 20 bits per coordinate",
        "laplace": "Laplace: Laplace noise on an l1 ball, on a fine grid, 20 bits per coordinate",
        "privunit": "PrivUnit: optimised PrivUnit on an l2 ball, a dense unit vector per report",
        "privunit-g": "PrivUnitG: optimised Gaussian PrivUnit on an l2 ball, a dense vector per report",
        "privunit-g-seed": "PrivUnitGSeed: privunit-g in 128 bits: the seed of its report, found by a search",
        "projunit": "ProjUnit: PrivUnit of an l2 ball folded to a few thousand numbers by public signs",
        "sampled-bits": "SampledBits: a sign of each of several coordinates of an l-infinity ball",
        "sqkr": "SQKR: sampled signs of a Kashin representation of an l2 ball, as one pattern",
    },
    Kind.CATEGORIES: {
        "hadamard-response": "HadamardResponse: Hadamard response of a category, in floor(log2 dim) + 1 bits",
        "k-rr": "KRandomizedResponse: K-ary randomized response of a category, in ceil(log2 dim) bits",
        "limited-hadamard": "LimitedHadamard: one-bit Hadamard response of a category in a random group",
        "local-hashing": "LocalHashing: optimal local hashing of a category, a hash for each client",
        "oue": "OptimalUnaryEncoding: optimal unary encoding of a category, dim bits per report",
        "rappor": "Rappor: symmetric unary encoding of a category, dim bits per report",
        "subset-selection": "SubsetSelection: subset selection of a category, of the least error",
    },
    Kind.SUMS: {
        "multi-message": "BallSum: sum of an l2 ball from tagged bits of coefficients, which clients flip",
        "decoy-vector-sum": "DecoyVectorSum: sum of an l1 ball from shuffled coordinates, and few decoys",
        "laplace-vector-sum": "LaplaceVectorSum: sum of an l1 ball with everybody's shares of Laplace noise",
        "unary-l1-sum": "UnaryL1Sum: sum of an l1 ball from flipped bits of one signed coordinate",
        "poisson-binomial": "PoissonBinomialSum: sum of an l2 ball from counts of random bits, its noise",
        "windowed-sum": "WindowedSum: sums of an l2 ball over windows of rounds, with correlated noise",
        "vector-sum": "VectorSum: sum of an l2 ball from counts of bits, with fair coins of all as its noise",
    },
}
"""Of each kind by name: the class, and a line on it."""

_ENTRIES = {
    name: _Entry(f"shuffle_plugins.{'protocols' if kind is Kind.SUMS else 'mechanisms'}:{cls}", summary, kind)
    for kind, mechanisms in _BUILT_IN.items()
    for name, (cls, _, summary) in ((name, text.partition(": ")) for name, text in mechanisms.items())
}


def register(name: str, factory: str | Factory, *, summary: str = "", kind: Kind | str | None = None) -> None:
    """Add a mechanism, or any :class:`~shuffle_plugins.mechanisms.PrivateSum`, under a name of its own.

    Args:
        name: lower-case words joined by hyphens.
        factory: the class or function to call, or its address ``"module:attribute"``. It takes
            ``local_epsilon``, ``dim``, ``radius`` and its own options, all by keyword; a sum's ``dim``,
            ``cohort``, ``radius``, and, by its class method ``with_noise``, ``noise_multiplier``.
        kind: by default a class tells. A function may be either of the one-message kinds.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a mechanism's name is lower-case words joined by hyphens, got {name!r}")
    _discover()
    if name in _ENTRIES:
        raise ValueError(f"a mechanism named {name!r} is registered already")
    _ENTRIES[name] = _Entry(factory, summary, None if kind is None else checks.choice(Kind, "kind", kind))


def available(*kinds: Kind | str) -> tuple[str, ...]:
    """Names of all mechanisms, or those of some kinds, sorted; those of third-party packages included."""
    _discover()
    wanted = {checks.choice(Kind, "kind", kind) for kind in kinds or Kind}
    return tuple(sorted(name for name in _ENTRIES if len(wanted) == len(Kind) or wanted & _kinds(name)))


def check_known(name: str, *kinds: Kind | str) -> None:
    """Refuse a name that no mechanism has; say which there are."""
    if name not in _ENTRIES:
        _discover()
    if name in _ENTRIES:
        return
    from difflib import get_close_matches  # only needed here

    offered = available(*kinds)
    spelt = {_bare(each): each for each in offered}
    for each in offered:
        address = _ENTRIES[each].factory
        if isinstance(address, str):
            spelt[_bare(address.rpartition(":")[2])] = each
    close = dict.fromkeys(spelt[found] for found in get_close_matches(_bare(name), spelt, n=3, cutoff=0.7))
    if close:
        raise ValueError(f"no mechanism named {name!r}; did you mean {' or '.join(map(repr, close))}?")
    sums = sorted(set(offered) & set(available(Kind.SUMS)))
    listed = ", ".join(each for each in offered if each not in sums)
    if sums:
        listed += f"; sums, which take noise_multiplier, are {', '.join(sums)}"
    raise ValueError(f"no mechanism named {name!r}; available: {listed}")


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def kind_of(name: str) -> Kind | None:
    """What a mechanism is, or None for a third-party function that does not say."""
    found = _kinds(name)
    return found.pop() if len(found) == 1 else None


def _kinds(name: str) -> set[Kind]:
    """What a mechanism may be."""
    entry = _entry(name)
    if entry.kind is not None:
        return {entry.kind}
    from shuffle_plugins.mechanisms.base import FrequencyOracle, PrivateSum

    factory = _load(entry.factory)
    if not isinstance(factory, type):
        return {Kind.VECTORS, Kind.CATEGORIES}
    if issubclass(factory, FrequencyOracle):
        return {Kind.CATEGORIES}
    sums = issubclass(factory, PrivateSum) and factory.privacy_parameter == "noise_multiplier"
    return {Kind.SUMS if sums else Kind.VECTORS}


def summary(name: str) -> str:
    """One line on what the mechanism is."""
    return _entry(name).summary


def get(name: str, *, dim: int, radius: float | None = None, **options: Any) -> Any:
    """Build a mechanism: a local randomizer, a frequency oracle, or a multi-message sum.

    A missing parameter, or an option that it does not take, is a TypeError.

    Args:
        radius: of the ball, in the mechanism's norm, 1 by default; not for categories.
        options: one-message mechanisms need ``local_epsilon``; sums ``cohort``, the number of clients in one
            sum, and ``noise_multiplier``, or the fields of their class.
    """
    found = factory(name)
    if "noise_multiplier" in options:
        found = getattr(found, "with_noise", found)
    parameters = inspect.signature(found).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if radius is not None or takes_any or "radius" in parameters:
        options["radius"] = 1.0 if radius is None else radius
    unknown = sorted(set(options) - set(parameters))
    if unknown and not takes_any:
        raise TypeError(
            f"mechanism {name!r} takes no option {', '.join(unknown)}; {_options(name, parameters)}"
        )
    try:
        return found(dim=dim, **options)
    except TypeError as error:
        if not takes_any:
            raise
        fields = inspect.signature(factory(name)).parameters
        raise TypeError(f"mechanism {name!r}: {error}; {_options(name, fields)}") from error


def _options(name: str, parameters: Iterable[str]) -> str:
    accepted = set(parameters) - {"local_epsilon", "dim", "radius"}
    if hasattr(factory(name), "with_noise"):
        accepted.add("noise_multiplier")
    first = ("cohort", "noise_multiplier")  # what sets a sum's privacy
    listed = ", ".join(sorted(accepted, key=lambda option: (option not in first, option))) or "none"
    return f"its options: {listed}"


def factory(name: str) -> Factory:
    """The class or function that builds a mechanism, imported."""
    return cast(Factory, _load(_entry(name).factory))


def blanket(name: str, *, local_epsilon: float, dim: int) -> Blanket:
    """The privacy blanket of a mechanism with its default options; built-in ones do not import torch.

    Options change it, up to nine times the ε: then take the one of ``get(name, …, level=…).blanket()``.
    """
    if kind_of(name) is Kind.SUMS:
        raise ValueError(
            f"{name} has no ε0 of single reports: its reports may be seen added up only. In Python, "
            f'record sp.get("{name}", dim=…, cohort=…, noise_multiplier=…).round(population=…) with '
            "ShuffleAccountant.step"
        )
    return cast("Blanket", get(name, local_epsilon=local_epsilon, dim=dim).blanket())


def _entry(name: str) -> _Entry:
    check_known(name)
    return _ENTRIES[name]


def _load(target: str | Callable[..., Any] | EntryPoint) -> object:
    if callable(target):
        return target
    if not isinstance(target, str):
        return target.load()
    module, _, attribute = target.partition(":")
    with advised():
        return getattr(import_module(module), attribute)


def _discover() -> None:
    from importlib.metadata import EntryPoint, entry_points  # slow to import, and rarely needed

    for point in entry_points(group=ENTRY_POINT_GROUP):
        known = _ENTRIES.get(point.name)
        if known is not None:
            if isinstance(known.factory, EntryPoint) and known.factory == point:
                continue
            raise ValueError(
                f"the installed entry point {point.value!r} offers a mechanism named {point.name!r}, which "
                "is taken; rename it or remove the package"
            )
        if not _NAME.fullmatch(point.name):
            raise ValueError(f"the installed entry point {point.value!r} has a malformed name {point.name!r}")
        package = point.dist.name if point.dist is not None else point.value
        _ENTRIES[point.name] = _Entry(point, f"from {package}", None)
