"""Checks of what reports estimate, and of the interface: wire, seeds, order, devices, unusual input."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.core.reports import Field
from shuffle_plugins.mechanisms.base import LocalRandomizer
from shuffle_plugins.randomness.sources import SeededRandomness
from shuffle_plugins.testing.case import (
    FLOAT32,
    LARGEST_Z,
    UNSEEN,
    Broken,
    Case,
    Measured,
    NotApplicable,
    distinct,
    estimates,
    lengths,
    pick,
    require,
    worst_z,
)

_ODD, _SOME, _MANY = 37, 50, 200  # clients
_CHECKSUM = 4  # bytes at the end of the wire form
_CLOSE = 1e-4  # relative; clipping twice may round twice in float32
_TOLERANCE = 0.02  # relative error of a variance that is let pass
_SUMMED = 12  # records of a sum that is drawn again and again
_PARTS = 100  # batches of which means are taken, to estimate their error
_ONE_BY_ONE = 500  # reports estimated between two looks at the error


# -- estimates --------------------------------------------------------------------------------------------


def is_unbiased(case: Case) -> Measured:
    """The mean report of a record is the record: by enumeration where reports can be listed, else sampled."""
    _own_coins(case)
    if case.outcomes is not None and case.tells_its_law:
        return _exactly_unbiased(case)
    truths = [case.truth(record) for record in case.typical]
    errors = [
        case.means(reports, parts=_PARTS) - truth for reports, truth in zip(case.drawn, truths, strict=True)
    ]
    along = sum((error @ truth for error, truth in zip(errors, truths, strict=True)), torch.zeros(_PARTS))
    pooled = along.double() / sum(float(truth @ truth) for truth in truths)
    unseen = UNSEEN / case.samples
    z = max(worst_z(error, unseen=unseen) for error in [*errors, pooled.unsqueeze(1)])
    bias = float(pooled.mean())
    require(
        z <= LARGEST_Z, "the mean of the reports is not the record", standard_errors=z, relative_bias=bias
    )
    return {"standard errors": z, "relative bias": bias}


def _exactly_unbiased(case: Case) -> Measured:
    values = case.outcome_estimates
    truth = torch.stack([case.truth(record) for record in case.extremes])
    bias = float((case.law @ values - truth).abs().max())
    scale = float(values.abs().max())
    # float32 estimates
    require(bias <= 4e-7 * scale, "the expected report is not the record", bias=bias)
    return {"bias": bias}


def has_the_declared_variance(case: Case) -> Measured:
    """E‖R(x) - x‖² is ``variance(x)``: by enumeration where possible, else within 2 % and sampling error."""
    _own_coins(case)
    declared = _declared(case, case.typical)
    worst = 0.0
    for i, record in enumerate(case.typical):
        measured, below, above = _mean_square(case, record, place=i)
        formula = float(declared[i])
        off = measured - formula
        if off > above or (off < -below and not case.variance_is_bound):
            raise Broken("the squared error is not what variance() says", measured=measured, declared=formula)
        worst = max(worst, abs(off) / formula if formula > 0 else 0.0)
    return {"off by a share of": worst}


def _mean_square(case: Case, record: Tensor, *, place: int) -> tuple[float, float, float]:
    """E‖R(x) - x‖², and how far it may lie below and above the formula."""
    truth = case.truth(record)
    if case.outcomes is not None and case.tells_its_law:
        probabilities = case.mechanism.log_likelihood(case.outcomes, record).exp()
        values = case.outcome_estimates
        measured = float(probabilities @ (values - truth).square().sum(dim=1))
        # Relative, of a variance enumerated from float32 estimates.
        rounding = 1e-4 * measured + FLOAT32 * float(probabilities @ values.square().sum(dim=1))
        return measured, rounding, rounding
    values, weights = _one_by_one(case, case.drawn[place], truth)
    squares = _without_noise(values, weights, truth)
    count = float(weights.sum())
    measured = float(weights @ squares) / count
    spread = (float(weights @ (squares - measured).square()) / count / count) ** 0.5
    allowed = _TOLERANCE * measured + LARGEST_Z * spread + FLOAT32 * (measured + float(truth @ truth))
    other = case.typical[(place + 1) % len(case.typical)]
    loudest = max(float(squares.max()), float((case.truth(other) - truth).square().sum()))
    return measured, allowed + UNSEEN / count * loudest, allowed


def _one_by_one(case: Case, reports: Reports, truth: Tensor) -> tuple[Tensor, Tensor]:
    """What single reports stand for, and how many clients sent each; no more of them than needed."""
    first, kind = distinct(reports)
    most = min(2500, len(reports) // 20)  # estimating one report at a time is slow
    if len(first) <= most:
        return estimates(case.mechanism, pick(reports, first)), torch.bincount(kind).double()
    values = torch.empty(0, case.mechanism.dim, dtype=torch.float64)
    for start in range(0, most, _ONE_BY_ONE):
        more = estimates(case.mechanism, reports.narrow(start, start + _ONE_BY_ONE))
        values = torch.cat([values, more])
        squares = _without_noise(values, torch.ones(len(values), dtype=torch.float64), truth)
        # Relative standard error at which no more reports are estimated.
        if float(squares.std()) <= 0.004 * float(squares.mean()) * len(squares) ** 0.5:
            break
    return values, torch.ones(len(values), dtype=torch.float64)


def _without_noise(values: Tensor, weights: Tensor, truth: Tensor) -> Tensor:
    """‖R - x‖², less the multiple of ⟨R, x⟩ - ‖x‖², of mean zero, that varies with it (a control variate)."""
    squares = (values - truth).square().sum(dim=1)
    control = (values - truth) @ truth
    centred = control - weights @ control / weights.sum()
    power = float(weights @ centred.square())
    if power == 0:
        return squares
    return squares - float(weights @ (centred * squares)) / power * control


def is_bounded_by_its_worst_variance(case: Case) -> Measured:
    """``variance`` is one finite number per record, not negative, and ``worst_variance`` no less than any."""
    tried = torch.cat([case.extremes, case.inside(64, dtype=torch.float64)])
    declared = _declared(case, tried)
    worst = case.mechanism.worst_variance
    largest = float(declared.max())
    scale = max(float(torch.stack([case.truth(record) for record in tried]).square().sum(dim=1).max()), worst)
    if not bool(declared.isfinite().all()) or float(declared.min()) < -1e-12 * scale:
        raise Broken("variance() must be finite and not negative", smallest=float(declared.min()))
    enough = largest <= worst + 1e-9 * scale
    require(enough, "worst_variance is smaller than a variance", worst=worst, largest=largest)
    return {"worst": worst, "largest": largest}


def sums_like_its_reports(case: Case) -> Measured:
    """``randomize_sum`` has the mean and the variance of the sum of a cohort's reports."""
    _own_coins(case)
    place = torch.arange(_SUMMED)
    near = _sums(case, case.typical[0 * place], salt=70)
    mixed = _sums(case, case.typical[place % len(case.typical)], salt=71)
    return {"standard errors": max(near, mixed)}


def _sums(case: Case, records: Tensor, *, salt: int) -> float:
    """Compare sums of one cohort with what they should be; returns the mean's error in standard errors."""
    mechanism = case.mechanism
    truth = torch.stack([case.truth(record) for record in records]).sum(dim=0)
    source = case.source(salt)
    count = min(max(case.samples // 400, 40), 75)  # samples that a sum counts for
    drawn = [mechanism.randomize_sum(records, randomness=source) for _ in range(count)]
    shape = (mechanism.dim,)
    fits = all(total.shape == shape for total in drawn)
    require(fits, f"randomize_sum must return {shape}, got {tuple(drawn[0].shape)}")
    errors = torch.stack(drawn).double() - truth
    z = worst_z(errors, unseen=UNSEEN / count / _SUMMED)
    require(z <= LARGEST_Z, "the mean of randomize_sum is not the sum of the records", standard_errors=z)
    declared = float(_declared(case, records).sum())
    squares = errors.square().sum(dim=1)
    measured = float(squares.mean())
    above = _TOLERANCE * measured + LARGEST_Z * float(squares.std()) / count**0.5
    radius = mechanism.radius if isinstance(mechanism, LocalRandomizer) else 1.0
    above += FLOAT32 * (_SUMMED * measured + float(truth @ truth)) + (FLOAT32 * _SUMMED * radius) ** 2
    below = above + UNSEEN / count * max(float(squares.max()), float(truth @ truth))
    off = measured - declared
    if off > above or (off < -below and not case.variance_is_bound):
        raise Broken("randomize_sum has not the variance of a sum", measured=measured, declared=declared)
    return z


def _own_coins(case: Case) -> None:
    if not case.mechanism.shufflable:
        raise NotApplicable(
            "its reports are read in their order, with coins of the public: estimates hold on average over "
            "those, and are checked where clients draw them"
        )


def _declared(case: Case, records: Tensor) -> Tensor:
    found = case.mechanism.variance(records)
    shape = (len(records),)
    require(found.shape == shape, f"variance must return {shape}, got {tuple(found.shape)}")
    return found.double()


# -- the wire ---------------------------------------------------------------------------------------------


def takes_its_bits_on_the_wire(case: Case) -> Measured:
    """Reports take ``bits_per_report`` bits each, to the bit."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_ODD), randomness=case.source())
    declared = mechanism.bits_per_report
    packed = len(reports.to_bytes()) - reports.layout.header_bytes
    found = reports.bits_per_report
    fits = found == declared and packed == (_ODD * declared + 7) // 8
    told = {"declared": declared, "found": found, "bytes_for_37": packed}
    require(fits, "reports do not take bits_per_report bits", **told)
    return {"bits": declared}


def survives_the_wire(case: Case) -> Measured:
    """Bytes give back the same reports, with the same sum, under the mechanism's own name and dimension."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_ODD), randomness=case.source())
    carried = (reports.mechanism, reports.dim, len(reports)) == (mechanism.name, mechanism.dim, _ODD)
    require(carried, "reports must carry the mechanism's name and dim, one report per client")
    data = reports.to_bytes()
    back = Reports.from_bytes(data)
    require(back.to_bytes() == data, "bytes do not give back the same reports")
    same = torch.equal(mechanism.sum(back), mechanism.sum(reports))
    require(same, "the sum changes on the way over the wire")
    return {}


def refuses_foreign_reports(case: Case) -> Measured:
    """Reports of another mechanism, dimension or layout are a ValueError."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_ODD), randomness=case.source())
    foreign = {
        "another mechanism": replace(reports, mechanism="another"),
        "another dimension": replace(reports, dim=mechanism.dim + 1),
        "one field more": replace(reports, fields=(*reports.fields, Field(torch.zeros(_ODD).long(), 3))),
    }
    if len(reports.fields) > 1:
        foreign["one field less"] = replace(reports, fields=reports.fields[:-1])
    for kind, given in foreign.items():
        _refused(f"reports of {kind}", partial(mechanism.sum, given))
    return {}


def bounds_forged_reports(case: Case) -> Measured:
    """A forged report is a ValueError, or moves the sum by a finite and bounded amount.

    Tried: bits flipped at random anywhere in the bytes, the checksum made to fit; fields at their largest
    value, of floats where integers belong, too wide, NaN and infinite. Bounded is what stays within 1000
    times the radius plus the standard deviation of a report.
    """
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_ODD), randomness=case.source())
    honest = mechanism.sum(reports).double()
    radius = mechanism.radius if isinstance(mechanism, LocalRandomizer) else 1.0
    # A forged report may move the sum by so many times a report's size.
    limit = 1000.0 * (radius + math.sqrt(max(mechanism.worst_variance, 0.0)))
    influence = 0.0
    for kind, forged, altered in _forgeries(case, reports):
        try:
            total = mechanism.sum(forged).double()
        except ValueError:
            continue
        sound = total.shape == honest.shape and bool(total.isfinite().all())
        require(sound, f"a forged report ({kind}) makes the sum NaN, infinite or of another shape")
        moved = float((total - honest).norm()) / altered
        bounded = not moved > limit
        require(bounded, f"a forged report ({kind}) moves the sum without bound", moved=moved, limit=limit)
        influence = max(influence, moved)
    return {"largest influence": influence}


def _forgeries(case: Case, reports: Reports) -> Iterator[tuple[str, Reports, int]]:
    """Kind, forged reports, and how many clients' reports differ."""
    yield from _flipped(case, reports)
    for place, field in enumerate(reports.fields):
        for kind, values, bits in _bad_values(field):
            try:
                forged = Field(values, bits)
            except ValueError:
                continue
            fields = (*reports.fields[:place], forged, *reports.fields[place + 1 :])
            yield f"field {place}: {kind}", replace(reports, fields=fields), len(reports)


def _bad_values(field: Field) -> Iterator[tuple[str, Tensor, int]]:
    values = field.values
    yield "twice as wide", torch.stack([values.reshape(len(values), -1)] * 2, dim=2).flatten(1), field.bits
    if values.is_floating_point():
        for bad in (math.nan, math.inf, torch.finfo(values.dtype).max):
            yield f"{bad}", torch.full_like(values, bad), field.bits
        return
    yield "all ones", torch.full_like(values, (1 << field.bits) - 1), field.bits
    yield "one bit more", torch.full_like(values, 1 << field.bits, dtype=torch.int64), field.bits + 1
    yield "floats", values.float(), 32


def _flipped(case: Case, reports: Reports) -> Iterator[tuple[str, Reports, int]]:
    data = reports.to_bytes()
    generator = case.generator(4)
    # Forged reports, each with two bits flipped.
    places = torch.randint(8 * (len(data) - _CHECKSUM), (80, 2), generator=generator).tolist()
    for pair in places:
        altered = bytearray(data[:-_CHECKSUM])
        for place in pair:
            altered[place // 8] ^= 1 << place % 8
        altered += struct.pack("<I", zlib.crc32(altered))
        try:
            forged = Reports.from_bytes(bytes(altered))
        except ValueError:
            continue
        yield f"bits {pair} flipped", forged, 2


# -- behaviour --------------------------------------------------------------------------------------------


def repeats_under_a_seed(case: Case) -> Measured:
    """One seed gives the same reports and sums again, whatever the state of torch's own generator."""
    mechanism = case.mechanism
    batch = case.inside(_MANY)
    seen, sums = set(), set()
    for state in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state)
            seen.add(mechanism.randomize(batch, randomness=case.source(5)).to_bytes())
            sums.add(tuple(mechanism.randomize_sum(batch, randomness=case.source(6)).tolist()))
    told = "two runs under one seed differ: take every random bit from the randomness given"
    require(len(seen) == 1, told)
    require(len(sums) == 1, "randomize_sum differs in two runs under one seed")
    return {}


def differs_without_a_seed(case: Case) -> Measured:
    """Two seeds differ; and so do any two runs without a seed, also after torch's generator is reset."""
    mechanism = case.mechanism
    if mechanism.local_epsilon > 2.0:
        raise NotApplicable("at so large an ε0 reports may agree by themselves")
    batch = case.inside(_MANY)

    def sent(randomness: SeededRandomness | None) -> bytes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return mechanism.randomize(batch, randomness=randomness).to_bytes()

    seeded = sent(case.source(7)) != sent(case.source(8))
    require(seeded, "two seeds give the same reports: the randomness given is ignored")
    fresh = sent(None) != sent(None)
    require(fresh, "two runs without a seed give the same reports: nothing is random by default")
    return {}


def does_not_depend_on_order(case: Case) -> Measured:
    """The sum is the same in any order, and sums of pieces add up; the mean is the sum over n."""
    mechanism = case.mechanism
    if not mechanism.shufflable:
        raise NotApplicable("its reports can be read only in their order")
    reports = mechanism.randomize(case.inside(_MANY), randomness=case.source())
    each = [mechanism.sum(reports.narrow(i, i + 1)).double() for i in range(0, _MANY, 10)]
    scale = _MANY * max(float(value.norm()) for value in each) + 1e-300
    total = mechanism.sum(reports).double()
    require(total.shape == (mechanism.dim,), f"sum must return ({mechanism.dim},), got {tuple(total.shape)}")
    shuffled = mechanism.sum(reports.permute(case.source(9).permutation(_MANY))).double()
    cuts = itertools.pairwise((0, _MANY // 7, _MANY // 2, _MANY))
    pieces = [mechanism.sum(reports.narrow(start, stop)).double() for start, stop in cuts]
    others = {
        "another order": shuffled,
        "pieces": torch.stack(pieces).sum(dim=0),
        "n times the mean": mechanism.aggregate(reports).double() * _MANY,
    }
    worst = 0.0
    for kind, other in others.items():
        off = float((other - total).norm()) / scale
        require(off <= 2e-5, f"the sum is not that of {kind}", off_by_a_share_of=off)
        worst = max(worst, off)
    return {"off by a share of": worst}


def leaves_its_input_alone(case: Case) -> Measured:
    """The batch is not changed, and no gradient is followed through."""
    mechanism = case.mechanism
    batch = case.inside(_MANY)
    before = batch.clone()
    mechanism.randomize(batch, randomness=case.source())
    mechanism.randomize_sum(batch, randomness=case.source())
    mechanism.variance(batch)
    require(torch.equal(batch, before), "the batch is changed in place")
    if isinstance(mechanism, LocalRandomizer):
        batch.requires_grad_()
        released = [
            mechanism.sum(mechanism.randomize(batch, randomness=case.source())),
            mechanism.randomize_sum(batch, randomness=case.source()),
        ]
        require(not any(value.requires_grad for value in released), "gradients flow through the reports")
    return {}


def agrees_between_devices(case: Case) -> Measured:
    """Under one seed a batch on a CUDA device gives the reports of the same batch on the CPU."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    mechanism = case.mechanism
    batch = case.inside(_MANY)
    here = mechanism.randomize(batch, randomness=case.source())
    there = mechanism.randomize(batch.cuda(), randomness=case.source())
    if any(field.values.device.type != "cuda" for field in there.fields):
        raise Broken("reports of a batch on a device must stay there")
    off = _mismatch(here, there.to("cpu"))
    require(not off > 0.01, "reports differ between devices under one seed", share=off)
    total = mechanism.sum(there)
    require(total.device.type == "cuda", "the sum of reports on a device must stay there")
    scale = float(mechanism.sum(here).norm()) + 1e-300
    return {
        "share of reports that differ": off,
        "sums apart": float((total.cpu() - mechanism.sum(here)).norm()) / scale,
    }


def _mismatch(one: Reports, two: Reports) -> float:
    """Share of reports that differ; floats by more than rounding."""
    same = torch.ones(len(one), dtype=torch.bool)
    for a, b in zip(one.fields, two.fields, strict=True):
        left, right = (field.values.reshape(len(one), -1) for field in (a, b))
        close = (
            torch.isclose(left, right, rtol=1e-4, atol=1e-5) if left.is_floating_point() else left == right
        )
        same &= close.all(dim=1)
    return 1 - float(same.double().mean())


# -- input ------------------------------------------------------------------------------------------------


def takes_an_empty_batch(case: Case) -> Measured:
    """No clients: no reports, a sum of zeros, bytes and back; no mean."""
    mechanism = case.mechanism
    nobody = case.inside(3)[:0]
    reports = mechanism.randomize(nobody)
    zeros = torch.zeros(mechanism.dim)
    sums = [mechanism.sum(reports), mechanism.randomize_sum(nobody), mechanism.sum(reports.to("cpu"))]
    if len(reports) or any(total.shape != zeros.shape or bool(total.any()) for total in sums):
        raise Broken("an empty batch must give no reports and a sum of zeros")
    require(not len(type(reports).from_bytes(reports.to_bytes())), "an empty batch does not survive the wire")
    require(mechanism.variance(nobody).shape == (0,), "variance of no records must be of shape (0,)")
    _refused("the mean of no reports", lambda: mechanism.aggregate(reports))
    return {}


def takes_every_dtype(case: Case) -> Measured:
    """Floats of 16, 32 and 64 bits, or integers of every width: finite sums, float64 for float64."""
    mechanism = case.mechanism
    vectors = isinstance(mechanism, LocalRandomizer)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype in floats if vectors else (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        batch = case.inside(_SOME).to(dtype)
        reports = mechanism.randomize(batch, randomness=case.source())
        total = mechanism.randomize_sum(batch, randomness=case.source())
        if len(reports) != _SOME or not bool(mechanism.sum(reports).isfinite().all()):
            raise Broken(f"a batch of {dtype} is not randomised")
        if vectors and total.dtype != (torch.float64 if dtype == torch.float64 else torch.float32):
            raise Broken(f"randomize_sum of {dtype} returns {total.dtype}")
    return {}


def refuses_malformed_batches(case: Case) -> Measured:
    """Wrong types, dtypes, shapes and dimensions, and categories that do not exist."""
    mechanism = case.mechanism
    batch = case.inside(_SOME)
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
        for row, column in ((0, 0), (_SOME - 1, -1)):
            batch = case.inside(_SOME)
            zeroed = batch.index_fill(0, torch.tensor([row % _SOME]), 0)
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
    rows = case.beyond(_SOME)
    for given in (rows, 1e30 * rows, 1e-40 * rows):
        clipped = ball.clip(given)
        inside = lengths(given, ball.norm) <= ball.radius
        longest = float(lengths(clipped, ball.norm).max())
        # Relative, of a norm in float64.
        if clipped.shape != given.shape or not longest <= ball.radius * (1 + 1e-9):
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
    rows = case.beyond(_SOME)
    once = ball.sum(ball.randomize(rows, randomness=case.source(), clip=True)).double()
    twice = ball.sum(ball.randomize(ball.clip(rows), randomness=case.source())).double()
    if torch.allclose(once, twice, rtol=_CLOSE, atol=_CLOSE * float(twice.abs().max())):
        return {}
    source = case.source(80)
    shares = torch.linspace(0.05, 1, 200, dtype=torch.float64).unsqueeze(1)
    batch = shares * rows[-1]
    truth = ball.clip(batch).double().mean(dim=0)
    means = [ball.aggregate(ball.randomize(batch, randomness=source, clip=True)) for _ in range(60)]
    z = worst_z(torch.stack(means).double() - truth)
    told = "with clip=True a row outside the ball is not reported as clip() brings it in"
    require(z <= LARGEST_Z, told, standard_errors=z)
    return {"standard errors": z}


def _refused(
    kind: str, call: Callable[[], object], errors: tuple[type[Exception], ...] = (ValueError,)
) -> None:
    try:
        call()
    except errors:
        return
    raise Broken(f"{kind} must be refused with a ValueError, and was taken")
