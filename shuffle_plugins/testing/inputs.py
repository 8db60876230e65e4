"""Checks of input: what is refused, and what is taken though it is unusual."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from shuffle_plugins.mechanisms import LocalRandomizer
from shuffle_plugins.testing.accuracy import worst_z
from shuffle_plugins.testing.case import Broken, Case, Measured, lengths
from shuffle_plugins.testing.privacy import LARGEST_Z

_CLIENTS = 50
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TOLERANCE = 1e-9  # relative, of a norm in float64
_CLOSE = 1e-4  # relative; clipping twice may round twice in float32
_COHORT, _COHORTS = 200, 60


def takes_an_empty_batch(case: Case) -> Measured:
    """No clients: no reports, a sum of zeros, bytes and back; no mean."""
    mechanism = case.mechanism
    nobody = case.inside(3)[:0]
    reports = mechanism.randomize(nobody)
    zeros = torch.zeros(mechanism.dim)
    sums = [mechanism.sum(reports), mechanism.randomize_sum(nobody), mechanism.sum(reports.to("cpu"))]
    if len(reports) or any(total.shape != zeros.shape or bool(total.any()) for total in sums):
        raise Broken("an empty batch must give no reports and a sum of zeros")
    if len(type(reports).from_bytes(reports.to_bytes())):
        raise Broken("an empty batch does not survive the wire")
    if mechanism.variance(nobody).shape != (0,):
        raise Broken("variance of no records must be of shape (0,)")
    _refused("the mean of no reports", lambda: mechanism.aggregate(reports))
    return {}


def takes_every_dtype(case: Case) -> Measured:
    """Floats of 16, 32 and 64 bits, or integers of every width: finite sums, float64 for float64."""
    mechanism = case.mechanism
    vectors = isinstance(mechanism, LocalRandomizer)
    for dtype in _FLOATS if vectors else _INTEGERS:
        batch = case.inside(_CLIENTS).to(dtype)
        reports = mechanism.randomize(batch, randomness=case.source())
        total = mechanism.randomize_sum(batch, randomness=case.source())
        if len(reports) != _CLIENTS or not bool(mechanism.sum(reports).isfinite().all()):
            raise Broken(f"a batch of {dtype} is not randomised")
        if vectors and total.dtype != (torch.float64 if dtype == torch.float64 else torch.float32):
            raise Broken(f"randomize_sum of {dtype} returns {total.dtype}")
    return {}


def refuses_malformed_batches(case: Case) -> Measured:
    """Wrong types, dtypes, shapes and dimensions, and categories that do not exist."""
    mechanism = case.mechanism
    batch = case.inside(_CLIENTS)
    bad: dict[str, object] = {"an array": np.zeros(tuple(batch.shape), dtype=np.float32)}
    if isinstance(mechanism, LocalRandomizer):
        bad |= {
            "integers": batch.long(),
            "complex numbers": batch.to(torch.complex64),
            "one column more": torch.zeros(3, mechanism.dim + 1),
            "a single vector": torch.zeros(mechanism.dim),
            "three axes": torch.zeros(2, 3, mechanism.dim),
        }
    else:
        bad |= {
            "floats": batch.float(),
            "a category too many": torch.tensor([0, mechanism.dim]),
            "a negative category": torch.tensor([0, -1]),
            "one category without a batch": torch.tensor(0),
            "two axes": torch.zeros(3, 2, dtype=torch.int64),
            "booleans": torch.zeros(3, dtype=torch.bool),
        }
    for kind, given in bad.items():
        for draw in (mechanism.randomize, mechanism.randomize_sum):
            _refused(kind, lambda draw=draw, given=given: draw(given), (ValueError, TypeError))  # type: ignore[misc]
    return {}


def takes_what_is_not_finite_for_zeros(case: Case) -> Measured:
    """A row with NaN or an infinity is refused without ``clip``, and with it reported as one of zeros.

    Under one seed the others' reports are then the same: what they are must not depend on that row.
    """
    ball = case.ball
    for bad in (math.nan, math.inf, -math.inf):
        for row, column in ((0, 0), (_CLIENTS - 1, -1)):
            batch = case.inside(_CLIENTS)
            zeroed = batch.index_fill(0, torch.tensor([row % _CLIENTS]), 0)
            batch[row, column] = bad
            for draws in (ball.randomize_sum, lambda x, **how: ball.sum(ball.randomize(x, **how))):
                _refused(f"{bad} with clip=False", partial(draws, batch, clip=False))
                taken, wanted = (draws(x, randomness=case.source(), clip=True) for x in (batch, zeroed))
                if not torch.equal(taken, wanted):
                    raise Broken(f"with clip=True a row with {bad} is not reported as one of zeros")
    return {}


def refuses_rows_outside_the_ball(case: Case) -> Measured:
    """A row longer than the radius by a thousandth is refused without ``clip``, and one on it is taken."""
    ball = case.ball
    batch = case.extremes.float()
    ball.randomize(batch, randomness=case.source())
    batch[0] *= 1.001
    for draw in (ball.randomize, ball.randomize_sum):
        _refused("a row outside the ball", lambda d=draw: d(batch, clip=False))  # type: ignore[misc]
    return {}


def clips_into_the_ball(case: Case) -> Measured:
    """``clip()`` ends in the ball and leaves what is inside; it does so for rows of any finite size."""
    ball = case.ball
    rows = case.beyond(_CLIENTS)
    for given in (rows, 1e30 * rows, 1e-40 * rows):
        clipped = ball.clip(given)
        inside = lengths(given, ball) <= ball.radius
        longest = float(lengths(clipped, ball).max())
        if clipped.shape != given.shape or not longest <= ball.radius * (1 + _TOLERANCE):
            raise Broken("clip() leaves rows outside the ball", norm=longest, radius=ball.radius)
        if not torch.allclose(clipped[inside], given[inside], rtol=1e-9, atol=0):
            raise Broken("clip() changes rows inside the ball")
    for dtype in (torch.float32, torch.bfloat16):
        huge = (torch.full((3, ball.dim), 1e30, dtype=torch.float64)).to(dtype)
        if not bool(ball.sum(ball.randomize(huge, randomness=case.source(), clip=True)).isfinite().all()):
            raise Broken("rows of huge finite entries are not clipped to something finite")
    return {}


def clipping_while_randomising_is_clipping_first(case: Case) -> Measured:
    """``randomize(x, clip=True)`` has the law of ``randomize(clip(x))``: the same reports under one seed.

    Where those differ, the two means are compared instead.
    """
    ball = case.ball
    rows = case.beyond(_CLIENTS)
    once = ball.sum(ball.randomize(rows, randomness=case.source(), clip=True)).double()
    twice = ball.sum(ball.randomize(ball.clip(rows), randomness=case.source())).double()
    if torch.allclose(once, twice, rtol=_CLOSE, atol=_CLOSE * float(twice.abs().max())):
        return {}
    source = case.source(80)
    shares = torch.linspace(0.05, 1, _COHORT, dtype=torch.float64).unsqueeze(1)
    batch = shares * rows[-1]
    truth = ball.clip(batch).double().mean(dim=0)
    means = [ball.aggregate(ball.randomize(batch, randomness=source, clip=True)) for _ in range(_COHORTS)]
    z = worst_z(torch.stack(means).double() - truth)
    if not z <= LARGEST_Z:
        raise Broken(
            "with clip=True a row outside the ball is not reported as clip() brings it in", standard_errors=z
        )
    return {"standard errors": z}


def _refused(
    kind: str, call: Callable[[], object], errors: tuple[type[Exception], ...] = (ValueError,)
) -> None:
    """The call must raise one of the errors."""
    try:
        call()
    except errors:
        return
    raise Broken(f"{kind} must be refused with a ValueError, and was taken")
