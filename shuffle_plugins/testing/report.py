"""The results of a conformance run: single checks, and the report of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_SIGNS = {"passed": "✓", "skipped": "–", "failed": "✗"}
EVERYWHERE = "all"
"""The setting of a check that is made once, not per ε0 and dimension."""


class Status(StrEnum):
    """Whether a check passed, was skipped or failed."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


class ConformanceError(AssertionError):
    """A mechanism breaks a promise of its interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of one mechanism in one setting.

    Attributes:
        check: name of the check.
        setting: ε0 and dimension, in words.
        status: whether it passed, was skipped or failed.
        message: what went wrong, or why it was skipped; empty where it passed.
        measured: numbers by name, as measured.
    """

    check: str
    setting: str
    status: Status
    message: str = ""
    measured: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in self.measured)
        told = "; ".join(part for part in (self.message, numbers) if part)
        return f"{_SIGNS[self.status]} {self.check} ({self.setting})" + (f": {told}" if told else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """All checks of one mechanism.

    Attributes:
        mechanism: name of the mechanism that was checked.
        results: every check in every setting, in the order in which they ran.
    """

    mechanism: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something passed."""
        return not self.failures and any(result.status is Status.PASSED for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The results of all checks that failed."""
        return tuple(result for result in self.results if result.status is Status.FAILED)

    def of(self, check: str) -> tuple[CheckResult, ...]:
        """The results of one check, by its name."""
        return tuple(result for result in self.results if result.check == check)

    def raise_on_failure(self) -> None:
        """Raise if the mechanism does not conform.

        Raises:
            ConformanceError: if a check failed, or none passed; it lists what failed.
        """
        if self.failures:
            listed = "\n".join(f"  {result}" for result in self.failures)
            raise ConformanceError(f"{self.mechanism} does not conform:\n{listed}")
        if not self.passed:
            raise ConformanceError(f"nothing about {self.mechanism} could be checked:\n{self}")

    def __str__(self) -> str:
        """A line per check: in how many settings it passed, and every failure and reason to skip in full."""
        lines = [f"{self.mechanism}: {'conforms' if self.passed else 'DOES NOT CONFORM'}"]
        for check in dict.fromkeys(result.check for result in self.results):
            lines.extend(self._lines(check))
        tried = dict.fromkeys(result.setting for result in self.results if result.setting != EVERYWHERE)
        settings = "; ".join(tried)
        return "\n".join([*lines, f"  tried: {settings}; nothing is said of others"])

    def _lines(self, check: str) -> Iterator[str]:
        found = self.of(check)
        passed = sum(result.status is Status.PASSED for result in found)
        failed = any(result.status is Status.FAILED for result in found)
        status = Status.FAILED if failed else Status.PASSED if passed else Status.SKIPPED
        yield f"  {_SIGNS[status]} {check}: passed in {passed} of {len(found)} settings"
        for result in found:
            if result.status is Status.FAILED:
                yield f"      {result}"
        for reason in dict.fromkeys(result.message for result in found if result.status is Status.SKIPPED):
            yield f"      – skipped: {reason}"
