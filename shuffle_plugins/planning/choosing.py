"""Which mechanism to take: error, bits and speed of all registered ones on one question."""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.errors import check_norm, enclosing_radius
from shuffle_plugins.planning.plans import Dismissed

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms import FrequencyOracle, LocalRandomizer

Domain = Literal["l1", "l2", "linf", "categories"]

_TIMED_VALUES, _MOST_TIMED = 1 << 21, 256  # numbers, and clients, in the batch that is timed: milliseconds


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one report of a mechanism costs.

    ``domain`` is the norm of its own ball, of this ``radius`` around the clients', or ``"categories"``;
    ``variance`` the largest E‖R(x) - x‖² there; ``seconds`` those to randomise one client's datum in a batch,
    on one CPU, if they were measured.
    """

    name: str
    domain: str
    local_delta: float
    radius: float | None
    variance: float
    bits: int
    seconds: float | None
    summary: str


def choices(
    *, local_epsilon: float, dim: int, norm: Domain | None = None, radius: float = 1.0, timed: bool = False
) -> tuple[tuple[Choice, ...], tuple[Dismissed, ...]]:
    """All registered mechanisms on clients' data of one kind, of least error first; and those that refuse.

    One made for another norm is set up for the smallest ball of its own around the clients'. Without a
    ``norm`` each is put to its own. ``timed`` takes a second or so.
    """
    if norm is not None and norm not in get_args(Domain):
        raise ValueError(f"norm must be one of {', '.join(get_args(Domain))}, got {norm!r}")
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    checks.radius(radius)
    found: list[Choice] = []
    refused: list[Dismissed] = []
    for name in registry.available(*registry.ONE_MESSAGE):
        try:
            mechanism = registry.get(name, local_epsilon=local_epsilon, dim=dim)
            size = None
            if (mechanism.domain == "categories") != (norm == "categories") and norm is not None:
                of_categories = mechanism.domain == "categories"
                raise ValueError(
                    "takes categories, not vectors" if of_categories else "takes vectors, not categories"
                )
            if mechanism.domain != "categories":
                own = check_norm(mechanism.domain)
                given = own if norm is None else check_norm(norm)
                size = enclosing_radius(radius=radius, norm=given, within=own, dim=dim)
                if size != mechanism.radius:
                    mechanism = registry.get(name, local_epsilon=local_epsilon, dim=dim, radius=size)
        except ValueError as error:
            refused.append(Dismissed(name=name, reason=str(error)))
            continue
        found.append(
            Choice(
                name=name,
                domain=mechanism.domain,
                local_delta=mechanism.local_delta,
                radius=size,
                variance=mechanism.worst_variance,
                bits=mechanism.bits_per_report,
                seconds=seconds_per_report(mechanism) if timed else None,
                summary=registry.summary(name),
            )
        )
    # Several have the same error: a processor's rounding does not say which comes first.
    found.sort(
        key=lambda each: (each.domain if norm is None else "", float(f"{each.variance:.9g}"), each.name)
    )
    return tuple(found), tuple(refused)


def seconds_per_report(mechanism: LocalRandomizer | FrequencyOracle) -> float:
    """Least of three measurements of a batch of up to 256 clients, divided by their number, in seconds."""
    import torch

    from shuffle_plugins.mechanisms.base import FrequencyOracle

    dim = mechanism.dim
    clients = max(1, min(_MOST_TIMED, _TIMED_VALUES // dim))
    # any data will do: no mechanism's time depends on them
    if isinstance(mechanism, FrequencyOracle):
        randomize = partial(mechanism.randomize, torch.arange(clients) % dim)
    else:
        rows = torch.linspace(-1.0, 1.0, clients * dim).reshape(clients, dim)
        randomize = partial(mechanism.randomize, rows, clip=True)
    return min(timeit.repeat(randomize, number=1, repeat=3)) / clients
