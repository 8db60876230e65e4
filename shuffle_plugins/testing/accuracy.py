"""Checks of what reports estimate: no bias, and the error that the formula says."""

from __future__ import annotations

import torch
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms.base import LocalRandomizer
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
    pick,
    require,
    worst_z,
)

_ESTIMATES = 4e-7  # relative error of float32 estimates
_TOLERANCE = 0.02  # relative error of a variance that is let pass
_PARTS = 100  # batches of which means are taken, to estimate their error
_ONE_BY_ONE = 500  # reports estimated between two looks at the error
_SHARE = 20  # at most a twentieth of the reports is estimated one by one
_FEWEST_SUMS, _MOST_SUMS, _SUMMED = 40, 75, 12


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
    if not z <= LARGEST_Z:
        raise Broken(
            "the mean of the reports is not the record", standard_errors=z, relative_bias=float(pooled.mean())
        )
    return {"standard errors": z, "relative bias": float(pooled.mean())}


def _exactly_unbiased(case: Case) -> Measured:
    values = case.outcome_estimates
    truth = torch.stack([case.truth(record) for record in case.extremes])
    bias = float((case.law @ values - truth).abs().max())
    scale = float(values.abs().max())
    require(bias <= _ESTIMATES * scale, "the expected report is not the record", bias=bias)
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
    most = min(2500, len(reports) // _SHARE)  # estimating one report at a time is slow
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
    if not largest <= worst + 1e-9 * scale:
        raise Broken("worst_variance is smaller than a variance", worst=worst, largest=largest)
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
    count = min(max(case.samples // 400, _FEWEST_SUMS), _MOST_SUMS)  # samples that a sum counts for
    drawn = [mechanism.randomize_sum(records, randomness=source) for _ in range(count)]
    if any(total.shape != (mechanism.dim,) for total in drawn):
        raise Broken(f"randomize_sum must return ({mechanism.dim},), got {tuple(drawn[0].shape)}")
    errors = torch.stack(drawn).double() - truth
    z = worst_z(errors, unseen=UNSEEN / count / _SUMMED)
    require(z <= LARGEST_Z, "the mean of randomize_sum is not the sum of the records", standard_errors=z)
    declared = float(_declared(case, records).sum())
    squares = errors.square().sum(dim=1)
    measured = float(squares.mean())
    above = _TOLERANCE * measured + LARGEST_Z * float(squares.std()) / count**0.5
    above += FLOAT32 * (_SUMMED * measured + float(truth @ truth)) + _rounding(mechanism)
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


def _rounding(mechanism: object) -> float:
    radius = mechanism.radius if isinstance(mechanism, LocalRandomizer) else 1.0
    return (FLOAT32 * _SUMMED * radius) ** 2


def _declared(case: Case, records: Tensor) -> Tensor:
    found = case.mechanism.variance(records)
    if found.shape != (len(records),):
        raise Broken(f"variance must return ({len(records)},), got {tuple(found.shape)}")
    return found.double()
