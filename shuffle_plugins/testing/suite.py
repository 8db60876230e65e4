"""The conformance checks as a pytest class to inherit from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import pytest

from shuffle_plugins.mechanisms.base import Mechanism
from shuffle_plugins.testing.case import Records
from shuffle_plugins.testing.conformance import (
    CHECKS,
    ConformanceError,
    ConformanceReport,
    Status,
    check_mechanism,
)


class MechanismConformance:
    """Inherit, say how to build the mechanism, and pytest runs every check as a test of its own.

    Example:
        >>> class TestMine(MechanismConformance):
        ...     def build(self, *, local_epsilon, dim):
        ...         return Mine(local_epsilon=local_epsilon, dim=dim, radius=0.5)

    Attributes are arguments of :func:`~shuffle_plugins.testing.conformance.check_mechanism`, if not None.
    """

    dims: ClassVar[Sequence[int] | None] = None
    local_epsilons: ClassVar[Sequence[float] | None] = None
    samples: ClassVar[int | None] = None
    variance_is_bound: ClassVar[bool] = False
    records: ClassVar[Records | None] = None
    seed: ClassVar[int] = 0

    def build(self, *, local_epsilon: float, dim: int) -> Mechanism:
        """The mechanism; a ValueError skips the setting."""
        raise NotImplementedError(
            f"{type(self).__name__} must say how to build its mechanism: define build()"
        )

    @pytest.mark.parametrize("check", CHECKS)
    def test_conformance(self, check: str) -> None:
        """One check, in every setting; skipped if it applies in none."""
        found = _report(type(self)).of(check)  # type: ignore[arg-type]
        failed = [str(result) for result in found if result.status is Status.FAILED]
        if failed:
            raise ConformanceError("\n".join(failed))
        if not any(result.status is Status.PASSED for result in found):
            pytest.skip("; ".join(dict.fromkeys(result.message for result in found)))


@cache
def _report(case: type[MechanismConformance]) -> ConformanceReport:
    names = ("dims", "local_epsilons", "samples", "variance_is_bound", "records", "seed")
    options = {name: getattr(case, name) for name in names}
    return check_mechanism(
        case().build, **{name: value for name, value in options.items() if value is not None}
    )
