"""One call that plans, prints the plan and carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.optim.methods import AGD, GD, OptimizationMethod, Phased, Smoothed
from shuffle_plugins.optim.oracles import GradientModel
from shuffle_plugins.optim.plans import Result
from shuffle_plugins.optim.problems import Problem, as_examples, flattened
from shuffle_plugins.randomness import Randomness, secure


def recommended(problem: Problem, *, interactive: bool = True) -> OptimizationMethod:
    """The method of the paper's Table 1 for a problem.

    Args:
        problem: its smoothness and strong convexity decide.
        interactive: whether a client can be asked in every step, or only once.
    """
    inner = GD() if interactive else AGD()
    method = Smoothed(inner=inner) if problem.smoothness == float("inf") else inner
    return Phased(inner=method) if problem.strong_convexity > 0 else method


def minimize(
    problem: Problem,
    data: Tensor | Sequence[Tensor],
    *,
    epsilon: float,
    delta: float,
    method: OptimizationMethod | None = None,
    model: GradientModel | None = None,
    records_per_client: int = 1,
    randomness: Randomness | None = None,
    report: Callable[[str], object] | None = print,
) -> Result:
    """Minimise the expected loss within (ε, δ), each row of the data being one client's.

    Args:
        problem: the loss and its domain.
        data: a tensor, or several, with a row for each client; with m records each, (clients, m, …).
        epsilon, delta, model: as of :meth:`OptimizationMethod.plan`; against an observer of all releases.
        records_per_client: m; with more than one, methods that draw records, and ε for one record replaced.
        method: by default the fully interactive one of Table 1.
        randomness: a fresh :class:`SecureRandomness` by default.
        report: called with the plan's text before anything runs. With None nothing is printed; otherwise
            runs of more than five seconds also show a progress bar.

    Raises:
        TypeError: if the problem, the method, the model or the randomness is something else.
        ValueError: as :meth:`OptimizationMethod.plan` and :meth:`OptimizationPlan.run`.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, such as logistic_regression(…), got {problem!r}")
    chosen = recommended(problem) if method is None else method
    if not isinstance(chosen, OptimizationMethod):
        raise TypeError(f"method must be an OptimizationMethod, such as GD(), got {method!r}")
    source = secure(randomness)
    examples = as_examples(data)
    checks.whole("records_per_client", records_per_client)
    problem.check(flattened(examples, records_per_client))
    plan = chosen.plan(
        problem,
        population=len(examples[0]),
        epsilon=epsilon,
        delta=delta,
        model=model,
        records_per_client=records_per_client,
    )
    if report is not None:
        report(plan.summary())
    return plan.run(examples, randomness=source, progress=report is not None)
