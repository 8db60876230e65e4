"""Runs all conformance checks of one mechanism."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shuffle_plugins.core.checks import whole
from shuffle_plugins.mechanisms import FrequencyOracle, LocalRandomizer, Mechanism, registry
from shuffle_plugins.testing import accuracy, behaviour, inputs, privacy, shuffling, wire
from shuffle_plugins.testing.case import Broken, Case, Measured, NotApplicable, Records
from shuffle_plugins.testing.report import EVERYWHERE, CheckResult, ConformanceReport, Status

MechanismFactory = Callable[..., Mechanism]
"""Builds the mechanism from ``local_epsilon`` and ``dim`` (and ``radius``, if it takes one) by keyword."""

Check = Callable[[Case], Measured]

_CHECKS: tuple[Check, ...] = (
    privacy.probabilities_sum_to_one,
    privacy.keeps_local_epsilon,
    privacy.sampler_follows_its_law,
    privacy.withstands_the_audit,
    privacy.can_be_accounted,
    shuffling.is_covered_by_its_blanket,
    accuracy.is_unbiased,
    accuracy.has_the_declared_variance,
    accuracy.is_bounded_by_its_worst_variance,
    accuracy.sums_like_its_reports,
    wire.takes_its_bits_on_the_wire,
    wire.survives_the_wire,
    wire.refuses_foreign_reports,
    wire.bounds_forged_reports,
    behaviour.repeats_under_a_seed,
    behaviour.differs_without_a_seed,
    behaviour.does_not_depend_on_order,
    behaviour.leaves_its_input_alone,
    behaviour.agrees_between_devices,
    inputs.takes_an_empty_batch,
    inputs.takes_every_dtype,
    inputs.refuses_malformed_batches,
    inputs.takes_what_is_not_finite_for_zeros,
    inputs.refuses_rows_outside_the_ball,
    inputs.clips_into_the_ball,
    inputs.clipping_while_randomising_is_clipping_first,
)
_BUILDING = "builds"
_PARAMETERS = "refuses bad parameters"
_MOST_VALUES = 1 << 21  # float32 values in the reports of a sample, to bound memory
_LEAST_SAMPLES = 1000
_TELLING = (0.02, 12.0)  # between these ε0 a sample of reports tells most
_FEWER = 5  # elsewhere a fifth of the samples is drawn

DEFAULT_DIMS = (1, 2, 7)
DEFAULT_LOCAL_EPSILONS = (1e-4, 1.5, 50.0)
DEFAULT_SAMPLES = 50_000
DEFAULT_RADIUS = 0.5


def _name(check: Check) -> str:
    return getattr(check, "__name__", repr(check)).replace("_", " ")


CHECKS: tuple[str, ...] = (_BUILDING, _PARAMETERS, *map(_name, _CHECKS))
"""Names of all checks, in the order in which they run."""


def check_mechanism(
    factory: str | MechanismFactory,
    *,
    dims: Sequence[int] = DEFAULT_DIMS,
    local_epsilons: Sequence[float] = DEFAULT_LOCAL_EPSILONS,
    radius: float | None = DEFAULT_RADIUS,
    checks: Sequence[str] = CHECKS,
    samples: int = DEFAULT_SAMPLES,
    variance_is_bound: bool = False,
    records: Records | None = None,
    seed: int = 0,
) -> ConformanceReport:
    """Check what a mechanism promises: ε0, no bias, error, size, seeds, order, devices, refusals.

    Everything but the two checks of default randomness is determined by ``seed``. A sound mechanism fails a
    statistical check in about one run of ten thousand, and then another seed tells.

    Args:
        factory: a registered name, or a callable that takes ``local_epsilon`` and ``dim``, and ``radius`` if
            it takes one, by keyword; use :func:`functools.partial` for further options.
        dims: dimensions, or numbers of categories, to try; those that the factory refuses with a ValueError
            are reported as skipped.
        local_epsilons: ε0 to try, in nats; likewise.
        radius: passed to factories that take one; None for their default.
        checks: names of the checks to run, of :data:`CHECKS`.
        samples: reports per record in statistical checks; fewer in large dimensions, and a fifth where ε0 is
            so small or large that samples tell little.
        variance_is_bound: whether ``variance`` is documented as an upper bound rather than the value.
        records: for a domain smaller than the ball: gives records (records, dim) of it, float64, those that
            tell most first.
        seed: any whole number.

    Returns:
        Every check in every setting; nothing is raised for a mechanism that does not conform.

    Raises:
        ValueError: if the mechanism's or a check's name is unknown, or ``samples`` is below 1000.
        TypeError: if the factory builds something else than a ``LocalRandomizer`` or a ``FrequencyOracle``.
    """
    unknown = sorted(set(checks) - set(CHECKS))
    if unknown:
        raise ValueError(f"no check named {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
    whole("samples", samples, at_least=_LEAST_SAMPLES)
    build = _builder(factory, radius=radius)
    results: list[CheckResult] = []
    chosen = [check for check in _CHECKS if _name(check) in checks]
    if _PARAMETERS in checks:
        results.append(_parameters(build, dims=dims, local_epsilons=local_epsilons))
    title = ""
    for dim in dims:
        for local_epsilon in local_epsilons:
            found = _built(build, dim=dim, local_epsilon=local_epsilon)
            if isinstance(found, CheckResult):
                results.append(found)
                continue
            title = title or (factory.__name__ if isinstance(factory, type) else found.name)
            results.append(_result(_BUILDING, f"ε0={local_epsilon:g}, dim={dim}", Status.PASSED))
            case = Case(
                mechanism=found,
                seed=seed,
                samples=_enough(samples, dim=dim, local_epsilon=local_epsilon),
                variance_is_bound=variance_is_bound,
                records=records,
            )
            results.extend(_run(check, case) for check in chosen)
    if not title:
        results.append(
            _result(_BUILDING, "every setting", Status.FAILED, "it cannot be built in any setting")
        )
    return ConformanceReport(mechanism=title or str(factory), results=tuple(results))


def _builder(factory: str | MechanismFactory, *, radius: float | None) -> MechanismFactory:
    """The factory, given a radius where it takes one."""
    if isinstance(factory, str):
        registry.summary(factory)
        by_name = partial(registry.get, factory)

        def named(**parameters: object) -> Mechanism:
            try:
                built: Mechanism = by_name(**({"radius": radius} | parameters))  # type: ignore[arg-type]
            except TypeError as error:
                if "radius" in parameters or "takes no option radius" not in str(error):
                    raise
                built = by_name(**parameters)  # type: ignore[arg-type]
            return built

        return named
    parameters = inspect.signature(factory).parameters
    takes = "radius" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return partial(factory, radius=radius) if takes and radius is not None else factory


def _enough(samples: int, *, dim: int, local_epsilon: float) -> int:
    """Fewer reports in large dimensions, and where ε0 is such that samples tell little."""
    least, most = _TELLING
    if not least <= local_epsilon <= most:
        samples //= _FEWER
    return max(_LEAST_SAMPLES, min(samples, _MOST_VALUES // dim))


def _built(
    build: MechanismFactory, *, dim: int, local_epsilon: float
) -> LocalRandomizer | FrequencyOracle | CheckResult:
    title = f"ε0={local_epsilon:g}, dim={dim}"
    try:
        mechanism = build(local_epsilon=local_epsilon, dim=dim)
    except ValueError as error:
        return _result(_BUILDING, title, Status.SKIPPED, f"it refuses {title}: {error}")
    if not isinstance(mechanism, (LocalRandomizer, FrequencyOracle)):
        raise TypeError(
            f"a mechanism is a LocalRandomizer or a FrequencyOracle, got {type(mechanism).__name__}: "
            "subclass one"
        )
    if mechanism.local_epsilon != local_epsilon or mechanism.dim != dim:
        return _result(_BUILDING, title, Status.FAILED, f"asked for {title}, got {mechanism!r}")
    return mechanism


def _parameters(
    build: MechanismFactory, *, dims: Sequence[int], local_epsilons: Sequence[float]
) -> CheckResult:
    """ε0, dimensions and radii that make no sense are a ValueError."""
    good = {"local_epsilon": local_epsilons[-1], "dim": dims[-1]}
    taken = []
    for change in _nonsense():
        try:
            build(**(good | change))
        except ValueError:
            continue
        except TypeError:
            if "radius" in change:
                continue
            raise
        taken.append(change)
    if taken:
        told = ", ".join(f"{name}={value!r}" for change in taken for name, value in change.items())
        return _result(_PARAMETERS, EVERYWHERE, Status.FAILED, f"must be refused with a ValueError: {told}")
    return _result(_PARAMETERS, EVERYWHERE, Status.PASSED)


def _nonsense() -> Iterator[dict[str, object]]:
    for local_epsilon in (0, -1.0, math.nan, math.inf, 1e-300, "1", None):
        yield {"local_epsilon": local_epsilon}
    for dim in (0, -1, 1.5, True):
        yield {"dim": dim}
    for radius in (0, -1.0, math.nan, math.inf):
        yield {"radius": radius}


def _run(check: Check, case: Case) -> CheckResult:
    try:
        measured = check(case)
    except NotApplicable as reason:
        return _result(_name(check), case.title, Status.SKIPPED, str(reason))
    except Broken as fault:
        return _result(_name(check), case.title, Status.FAILED, str(fault), fault.measured)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return _result(_name(check), case.title, Status.FAILED, f"unexpected {told}")
    return _result(_name(check), case.title, Status.PASSED, "", measured)


def _result(
    check: str, setting: str, status: Status, message: str = "", measured: Measured | None = None
) -> CheckResult:
    numbers = tuple((name, float(value)) for name, value in (measured or {}).items())
    return CheckResult(check=check, setting=setting, status=status, message=message, measured=numbers)
