"""Frequency oracles of pure-ldp and multi-freq-ldpy, each as a function of data, K and ε0.

Both packages randomise one client per call, in Python, and know nothing of shuffling. Imported only when they
are run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Categories = npt.NDArray[np.int64]
Frequencies = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A peer's oracle.

    Attributes:
        package: whose.
        name: what it is called there.
        law: registered mechanism here whose report has the same law; None if there is none.
        normalised: whether its only estimate is cut at 0 and divided by its sum.
        estimate: frequencies from data in [0, K).
    """

    package: str
    name: str
    law: str | None
    normalised: bool
    estimate: Callable[[Categories, int, float], Frequencies]


def pure_ldp(client: str, server: str, **options: bool) -> Callable[[Categories, int, float], Frequencies]:
    """A pair of classes of pure-ldp, whose categories begin at 1."""

    def estimate(data: Categories, categories: int, local_epsilon: float) -> Frequencies:
        module = importlib.import_module("pure_ldp.frequency_oracles")
        one, all_of_them = getattr(module, client), getattr(module, server)
        collecting = all_of_them(local_epsilon, categories, **options)
        hashes = getattr(collecting, "get_hash_funcs", None)
        more = {"hash_funcs": hashes()} if hashes else {}
        sending = one(local_epsilon, categories, **options, **more)
        for datum in data.tolist():
            collecting.aggregate(sending.privatise(datum + 1))
        found = collecting.estimate_all(range(1, categories + 1), suppress_warnings=True)
        return np.asarray(found, dtype=np.float64) / len(data)

    return estimate


def multi_freq(module: str, prefix: str) -> Callable[[Categories, int, float], Frequencies]:
    """A module of multi-freq-ldpy, whose estimates are never negative and sum to 1."""

    def estimate(data: Categories, categories: int, local_epsilon: float) -> Frequencies:
        found = importlib.import_module(f"multi_freq_ldpy.pure_frequency_oracles.{module}")
        send, collect = getattr(found, f"{prefix}_Client"), getattr(found, f"{prefix}_Aggregator_MI")
        reports = [send(datum, categories, local_epsilon) for datum in data.tolist()]
        sizes = () if prefix == "UE" else (categories,)
        return np.asarray(collect(reports, *sizes, local_epsilon), dtype=np.float64)

    return estimate


PEERS = (
    Peer(
        package="pure-ldp",
        name="direct encoding",
        law="k-rr",
        normalised=False,
        estimate=pure_ldp("DEClient", "DEServer"),
    ),
    Peer(
        package="pure-ldp",
        name="optimal unary encoding",
        law="oue",
        normalised=False,
        estimate=pure_ldp("UEClient", "UEServer", use_oue=True),
    ),
    Peer(
        package="pure-ldp",
        name="optimal local hashing",
        law="local-hashing",
        normalised=False,
        estimate=pure_ldp("LHClient", "LHServer", use_olh=True),
    ),
    Peer(
        package="pure-ldp",
        name="Hadamard response",
        law=None,
        normalised=False,
        estimate=pure_ldp("HadamardResponseClient", "HadamardResponseServer"),
    ),
    Peer(
        package="multi-freq-ldpy",
        name="GRR",
        law="k-rr",
        normalised=True,
        estimate=multi_freq("GRR", "GRR"),
    ),
    Peer(
        package="multi-freq-ldpy",
        name="subset selection",
        law="subset-selection",
        normalised=True,
        estimate=multi_freq("SS", "SS"),
    ),
    Peer(
        package="multi-freq-ldpy",
        name="OUE",
        law="oue",
        normalised=True,
        estimate=multi_freq("UE", "UE"),
    ),
)
