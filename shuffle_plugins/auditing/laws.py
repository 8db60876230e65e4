"""Output laws of the mechanisms that this package ships, for likelihood-ratio attacks.

A law only steers an attack: if it is wrong the audit finds less, it never finds too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shuffle_plugins.mechanisms.base import LocalRandomizer
from shuffle_plugins.mechanisms.privunit_parameters import optimal_parameters
from shuffle_plugins.mechanisms.reports import Reports
from shuffle_plugins.mechanisms.signs import sign_values

ReportLaw = Callable[[LocalRandomizer, Reports, Tensor], Tensor]
"""Density of each report if the client's record is the last argument, (dim,).

Returns (reports,) float64, against any measure that does not depend on the record.
"""


def known_law(mechanism: LocalRandomizer) -> ReportLaw | None:
    """The law of a mechanism as its name and parameters declare it; None if this package does not know it."""
    return _LAWS.get(mechanism.name)


def _sign_law(mechanism: LocalRandomizer, reports: Reports, record: Tensor) -> Tensor:
    signs = sign_values(reports.fields[0]).double()
    return 1 + signs * math.tanh(mechanism.local_epsilon / 2) * float(record[0]) / mechanism.radius


def _coordinate_law(mechanism: LocalRandomizer, reports: Reports, record: Tensor) -> Tensor:
    values = record.double()[reports.fields[0].values.long()] / mechanism.radius
    return 1 + sign_values(reports.fields[1]).double() * math.tanh(mechanism.local_epsilon / 2) * values


def _privunit_law(mechanism: LocalRandomizer, reports: Reports, record: Tensor) -> Tensor:
    parameters = optimal_parameters(local_epsilon=mechanism.local_epsilon, dim=mechanism.dim)
    length = float(torch.linalg.vector_norm(record.double()))
    if length == 0:
        cap = torch.full((len(reports),), parameters.cap_measure, dtype=torch.float64)
    else:
        along = reports.fields[0].values.double() @ (record.double() / length)
        lean = min(length / mechanism.radius, 1.0)
        near, far = along >= parameters.threshold, -along >= parameters.threshold
        cap = near.double().mul_((1 + lean) / 2).add_(far.double(), alpha=(1 - lean) / 2)
    return cap.mul_(math.expm1(mechanism.local_epsilon)).add_(1)


_LAWS: dict[str, ReportLaw] = {
    "binary-rr": _sign_law,
    "linf-coordinate": _coordinate_law,
    "privunit": _privunit_law,
}
