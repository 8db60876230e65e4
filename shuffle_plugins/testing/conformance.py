"""Runs all conformance checks of one mechanism, and reports what they found."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from shuffle_plugins.core.checks import whole
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.base import FrequencyOracle, LocalRandomizer, Mechanism
from shuffle_plugins.testing import interface, privacy
from shuffle_plugins.testing.case import Broken, Case, Measured, NotApplicable, Records

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
    """One check of one mechanism in one setting, which is ε0 and dimension in words.

    ``message`` says what went wrong, or why it was skipped, and ``measured`` are numbers by name.
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
    """All checks of one mechanism, in every setting, in the order in which they ran."""

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
        """Raise a :class:`ConformanceError` if a check failed, or none passed; it lists what failed."""
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


MechanismFactory = Callable[..., Mechanism]
"""Builds the mechanism from ``local_epsilon`` and ``dim`` (and ``radius``, if it takes one) by keyword."""

Check = Callable[[Case], Measured]

# All public functions of both modules, in their order.
_CHECKS: tuple[Check, ...] = tuple(
    each
    for module in (privacy, interface)
    for name, each in vars(module).items()
    if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
)
_BUILDING = "builds"
_PARAMETERS = "refuses bad parameters"
_LEAST_SAMPLES = 1000
_TELLING = (0.02, 12.0)  # between these ε0 a sample of reports tells most


def _name(check: Check) -> str:
    return getattr(check, "__name__", repr(check)).replace("_", " ")


CHECKS: tuple[str, ...] = (_BUILDING, _PARAMETERS, *map(_name, _CHECKS))
"""Names of all checks, in the order in which they run."""


def check_mechanism(
    factory: str | MechanismFactory,
    *,
    dims: Sequence[int] = (1, 2, 7),
    local_epsilons: Sequence[float] = (1e-4, 1.5, 50.0),
    radius: float | None = 0.5,
    checks: Sequence[str] = CHECKS,
    samples: int = 50_000,
    variance_is_bound: bool = False,
    records: Records | None = None,
    seed: int = 0,
) -> ConformanceReport:
    """Check what a mechanism promises: ε0, no bias, error, size, seeds, order, devices, refusals.

    A sound mechanism fails a statistical check in about one run of ten thousand, and then another ``seed``
    tells. Nothing is raised for a mechanism that does not conform.

    Args:
        factory: a registered name, or a callable that takes ``local_epsilon`` and ``dim``, and ``radius`` if
            it takes one, by keyword; use :func:`functools.partial` for further options.
        dims, local_epsilons: dimensions (or numbers of categories) and ε0 to try; those that the factory
            refuses with a ValueError are reported as skipped.
        samples: reports per record in statistical checks, at least 1000; fewer in large dimensions, and a
            fifth where ε0 is so small or large that samples tell little.
        variance_is_bound: whether ``variance`` is documented as an upper bound rather than the value.
        records: for a domain smaller than the ball: gives records (records, dim) of it, float64, those that
            tell most first.
    """
    unknown = sorted(set(checks) - set(CHECKS))
    if unknown:
        raise ValueError(f"no check named {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
    whole("samples", samples, at_least=_LEAST_SAMPLES)
    build = _builder(factory, radius=radius)
    results: list[CheckResult] = []
    if _PARAMETERS in checks:
        results.append(_parameters(build, local_epsilon=local_epsilons[-1], dim=dims[-1]))
    title = ""
    for dim, local_epsilon in itertools.product(dims, local_epsilons):
        found = _built(build, dim=dim, local_epsilon=local_epsilon)
        if isinstance(found, CheckResult):
            results.append(found)
            continue
        title = title or (factory.__name__ if isinstance(factory, type) else found.name)
        # Elsewhere a fifth of the samples is drawn.
        enough = samples if _TELLING[0] <= local_epsilon <= _TELLING[1] else samples // 5
        case = Case(
            mechanism=found,
            seed=seed,
            samples=max(_LEAST_SAMPLES, min(enough, (1 << 21) // dim)),
            variance_is_bound=variance_is_bound,
            records=records,
        )
        results.append(CheckResult(check=_BUILDING, setting=case.title, status=Status.PASSED))
        results.extend(_run(check, case) for check in _CHECKS if _name(check) in checks)
    if not title:
        nowhere = "it cannot be built in any setting"
        results.append(
            CheckResult(check=_BUILDING, setting="every setting", status=Status.FAILED, message=nowhere)
        )
    return ConformanceReport(mechanism=title or str(factory), results=tuple(results))


def _builder(factory: str | MechanismFactory, *, radius: float | None) -> MechanismFactory:
    build: MechanismFactory
    if isinstance(factory, str):
        build = partial(registry.get, factory)
        takes = registry.kind_of(factory) is registry.Kind.VECTORS
    else:
        build, parameters = factory, inspect.signature(factory).parameters
        takes = "radius" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return partial(build, radius=radius) if takes and radius is not None else build


def _built(
    build: MechanismFactory, *, dim: int, local_epsilon: float
) -> LocalRandomizer | FrequencyOracle | CheckResult:
    title = f"ε0={local_epsilon:g}, dim={dim}"
    result = partial(CheckResult, check=_BUILDING, setting=title)
    try:
        mechanism = build(local_epsilon=local_epsilon, dim=dim)
    except ValueError as error:
        return result(status=Status.SKIPPED, message=f"it refuses {title}: {error}")
    if not isinstance(mechanism, (LocalRandomizer, FrequencyOracle)):
        raise TypeError(
            f"a mechanism is a LocalRandomizer or a FrequencyOracle, got {type(mechanism).__name__}: "
            "subclass one"
        )
    if mechanism.local_epsilon != local_epsilon or mechanism.dim != dim:
        return result(status=Status.FAILED, message=f"asked for {title}, got {mechanism!r}")
    return mechanism


def _parameters(build: MechanismFactory, **good: object) -> CheckResult:
    """ε0, dimensions and radii that make no sense are a ValueError."""
    taken = []
    nonsense: dict[str, tuple[object, ...]] = {
        "local_epsilon": (0, -1.0, math.nan, math.inf, 1e-300, "1", None),
        "dim": (0, -1, 1.5, True),
        "radius": (0, -1.0, math.nan, math.inf),
    }
    for name, values in nonsense.items():
        for value in values:
            try:
                build(**(good | {name: value}))
            except ValueError:
                continue
            except TypeError:
                if name == "radius":
                    continue
                raise
            taken.append(f"{name}={value!r}")
    result = partial(CheckResult, check=_PARAMETERS, setting=EVERYWHERE)
    if taken:
        told = f"must be refused with a ValueError: {', '.join(taken)}"
        return result(status=Status.FAILED, message=told)
    return result(status=Status.PASSED)


def _run(check: Check, case: Case) -> CheckResult:
    result = partial(CheckResult, check=_name(check), setting=case.title)
    try:
        return result(status=Status.PASSED, measured=_numbers(check(case)))
    except NotApplicable as reason:
        return result(status=Status.SKIPPED, message=str(reason))
    except Broken as fault:
        return result(status=Status.FAILED, message=str(fault), measured=_numbers(fault.measured))
    except Exception as error:
        return result(status=Status.FAILED, message=f"unexpected {type(error).__name__}: {error}")


def _numbers(measured: Measured) -> tuple[tuple[str, float], ...]:
    return tuple((name, float(value)) for name, value in measured.items())
