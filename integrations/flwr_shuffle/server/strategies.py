"""Which strategies can be wrapped, and how a strategy's own ``start`` is run in a shuffled run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from flwr_shuffle.server.wrapped_strategy import layers

_ROBUST = (Krum, MultiKrum, Bulyan, FedMedian, FedTrimmedAvg)
_TREES = (FedXgbBagging, FedXgbCyclic)
_PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_START = ("grid", "initial_arrays", "num_rounds", "timeout", "train_config", "evaluate_config", "evaluate_fn")
_REDIRECTED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
_OF_ONE_REPLY = frozenset(
    kind.aggregate_train for kind in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)
)  # FedProx has FedAvg's


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that a shuffled round cannot serve, whatever wraps it.

    A round gives the inner strategy one reply, the mean of all reports. FedAvg, FedAvgM, FedProx, FedAdam,
    FedAdagrad and FedYogi need no more. A strategy that compares replies, or weighs them by what clients say
    of themselves, would run on that one reply and do nothing of what it is for.

    Raises:
        ValueError: if it needs single replies, trees or noise of its own, or has a ``start`` that cannot be
            called as Flower's. The text says what to use instead.
    """
    for layer in layers(strategy):
        name = type(layer).__name__
        if isinstance(layer, _ROBUST):
            raise ValueError(
                f"{name} compares the clients' single updates, and in a shuffled round the server has only "
                "their noisy mean: nothing would be left out or outvoted. Use FedAvg, FedAvgM, FedAdam or "
                "FedYogi. What bounds a dishonest client here is clipping_norm, which no report exceeds by "
                "more than the mechanism's noise"
            )
        if isinstance(layer, QFedAvg):
            raise ValueError(
                f"{name} weighs every update by that client's own loss, and no loss leaves a client in a "
                "shuffled round. Use FedAvg or FedAdam; max_examples=… weighs updates on the clients"
            )
        if isinstance(layer, _TREES):
            raise ValueError(
                f"{name} collects the trees that clients grew, and trees have no mean that could be "
                "randomised. Train a model of floating-point parameters, with FedAvg or FedAdam"
            )
        if isinstance(layer, _PRIVATE):
            raise ValueError(
                f"{name} clips or adds noise a second time, to reports that clients have clipped and "
                "randomised already, and its own accounting would be of something else. Give the strategy "
                "that it wraps; a clipping norm that moves by itself is adaptive_clipping=…"
            )
    _check_start(strategy)


def needs_one_reply(strategy: Strategy) -> bool:
    """Whether every layer aggregates in a way of Flower's that is known to be content with one reply."""
    return all(type(layer).aggregate_train in _OF_ONE_REPLY for layer in layers(strategy))


def own_start(strategy: Strategy) -> bool:
    """Whether a strategy has a ``start`` that is not Flower's."""
    return type(strategy).start is not Strategy.start


def starting(strategy: Strategy, *, host: Strategy) -> Callable[..., Any]:
    """The strategy's own ``start``, in which rounds are configured and aggregated by ``host``.

    What it sets on itself and what it reads of itself are the strategy's own attributes. Only
    ``configure_train``, ``aggregate_train``, their evaluation twins and ``summary`` are the host's, also
    where ``start`` goes on to ``super().start``.
    """
    inner = type(strategy)
    methods = {name: staticmethod(getattr(host, name)) for name in _REDIRECTED}
    stand_in = type(inner.__name__, (inner,), {"__module__": inner.__module__, **methods})
    acting: Strategy = object.__new__(stand_in)
    acting.__dict__ = strategy.__dict__  # one state, seen from both
    return acting.start


def _check_start(strategy: Strategy) -> None:
    name = type(strategy).__name__
    where = (
        "Move what it does into evaluate_fn, which is called after every round, or into a subclass of "
        "ShuffleStrategy with its own start"
    )
    if "start" in getattr(strategy, "__dict__", {}):
        raise ValueError(f"{name} had start() assigned on the object, which would not be run. {where}")
    if not own_start(strategy):
        return
    try:
        inspect.signature(strategy.start).bind(**dict.fromkeys(_START))
    except TypeError as error:
        raise ValueError(
            f"{name} has its own start(), and it does not take the arguments of Flower's ({error}). {where}"
        ) from error
    if any("__slots__" in vars(kind) and vars(kind)["__slots__"] for kind in type(strategy).__mro__):
        raise ValueError(f"{name} has its own start() and __slots__, which cannot be shared. {where}")
