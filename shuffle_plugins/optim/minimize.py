"""One call that plans, prints the plan and carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.optim.methods import AGD, GD, OptimizationMethod, Phased, Smoothed, check_kind
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
        epsilon, delta, model, records_per_client: as of :meth:`OptimizationMethod.plan`.
        method: by default the fully interactive one of Table 1.
        randomness: as of :meth:`OptimizationPlan.run`, which may raise BudgetExceeded.
        report: called with the plan's text before anything runs. With None nothing is printed; otherwise
            runs of more than five seconds also show a progress bar.
    """
    check_kind("problem", problem, Problem, "a Problem, such as logistic_regression(…)")
    chosen = recommended(problem) if method is None else method
    check_kind("method", chosen, OptimizationMethod, "an OptimizationMethod, such as GD()")
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
