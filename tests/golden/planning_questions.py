"""Plans of rounds, choices of mechanisms, and the numbers of private optimisation."""

from __future__ import annotations

from functools import partial
from typing import Any

from accounting_questions import CATEGORY_MECHANISMS, DELTA, MECHANISMS
from answers import Questions

from shuffle_plugins import optim
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.optim import bounds
from shuffle_plugins.planning import choices, expected_noise, plan, report_error
from shuffle_plugins.planning.errors import enclosing_radius, gaussian_mse, sampling_error

QUESTIONS = Questions()

# -- plans --------------------------------------------------------------------------------------------------


def planned(**fields: Any) -> dict[str, Any]:
    given = {
        "target_epsilon": 0.5,
        "delta": 1e-5,
        "population": 400,
        "dim": 20,
        "mechanism": "l2-block",
        "num_steps": (1, 10),
        "cohorts": (40, 400),
    }
    found = plan(**given | fields)
    return {
        "best": found.best,
        "thrifty": found.thrifty,
        "edges": [found.cohort_edge, found.steps_edge],
        "rows": found.rows,
        "baselines": found.baselines,
        # Several have the same error, and the processor's rounding puts one of them first.
        "dismissed": sorted(each.name for each in found.dismissed),
        "infeasible": found.infeasible,
        "spread": found.spread,
        "norm": found.norm,
        "remarks": len(found.remarks()),
    }


_COHORTS = {Sampling.FULL: (400,), Sampling.WITHOUT_REPLACEMENT: (40, 400)}
for _sampling in (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL, Sampling.EPOCH):
    QUESTIONS.add(
        f"plan: {_sampling}",
        partial(planned, sampling=_sampling, cohorts=_COHORTS.get(_sampling, (40,)), num_steps=2),
    )
QUESTIONS.add("plan: privunit", partial(planned, mechanism="privunit", cohorts=(100,), num_steps=2))
QUESTIONS.add("plan: Rényi", partial(planned, method="rdp", num_steps=10, cohorts=(40,)))
QUESTIONS.add(
    "plan: searched", partial(planned, mechanism="privunit", population=4_000, cohorts=None, num_steps=2)
)
QUESTIONS.add("plan: best of all", partial(planned, mechanism="best", num_steps=2, cohorts=(100,)))
QUESTIONS.add("plan: spread", partial(planned, spread=0.01, tolerance=0.5, num_steps=2))
QUESTIONS.add("plan: out of reach", partial(planned, target_epsilon=1e-6, delta=1e-12, num_steps=1_000))
for _name in ("gaussian", "k-rr"):
    QUESTIONS.add(f"plan: {_name}", partial(planned, mechanism=_name, dim=1, num_steps=2))
QUESTIONS.add(
    "gaussian error: 1.0",
    partial(gaussian_mse, target_epsilon=1.0, delta=DELTA, sensitivity=0.3, dim=7),
)
for _sampling in Sampling:
    QUESTIONS.add(
        f"sampling error: {_sampling}",
        lambda sampling=_sampling: [
            sampling_error(population=1_000, cohort=k, sampling=sampling, spread=0.7)
            for k in (10, 500, 1_000)
        ],
    )
QUESTIONS.add(
    "enclosing radii",
    lambda: [
        enclosing_radius(radius=1.5, norm=inner, within=outer, dim=7)
        for inner in ("l1", "l2", "linf")
        for outer in ("l1", "l2", "linf")
    ],
)

# -- mechanisms ---------------------------------------------------------------------------------------------


def of_mechanism(name: str) -> dict[str, Any]:
    """Errors and bits of a report, by the registry, the planner and its closed form."""
    dim = 1 if name == "binary-rr" else 24
    built = registry.get(
        name, local_epsilon=2.0, dim=dim, **({} if name in CATEGORY_MECHANISMS else {"radius": 0.5})
    )
    found = {"mechanism": [built.domain, built.local_delta, built.worst_variance, built.bits_per_report]}
    if name not in CATEGORY_MECHANISMS:
        error = report_error(name, local_epsilon=2.0, dim=dim, radius=2.0, norm="l2")
        noise = expected_noise(built, cohort=300)
        loud = registry.get(name, local_epsilon=6.0, dim=dim)
        found |= {
            "report's error": [error.variance, error.bits],
            "closed form": [loud.worst_variance, loud.bits_per_report],
            "noise": [noise.noise, noise.largest_signal, noise.signal_to_noise_ratio_over(30)],
        }
    return found


for _name in MECHANISMS:
    QUESTIONS.add(f"mechanism: {_name}", partial(of_mechanism, _name))


def chosen(**fields: Any) -> dict[str, Any]:
    found, refused = choices(**{"local_epsilon": 2.0, "dim": 30, **fields})
    return {
        # By name: several have the same error, and the processor's rounding puts one of them first.
        "found": sorted([c.name, c.domain, c.local_delta, c.radius, c.variance, c.bits] for c in found),
        "refused": [each.name for each in refused],
    }


for _norm in (None, "categories"):
    QUESTIONS.add(f"choices: {_norm}", partial(chosen, norm=_norm))
QUESTIONS.add("choices: one number", partial(chosen, dim=1, radius=3.0))

# -- private optimisation -----------------------------------------------------------------------------------

_PROBLEMS = {
    "logistic": optim.logistic_regression(features=4, radius=4.0),
    "regularised": optim.logistic_regression(features=4, radius=4.0, regularisation=0.1),
    "hinge": optim.support_vector_machine(features=4, radius=4.0),
    "regularised hinge": optim.support_vector_machine(features=4, radius=4.0, regularisation=0.1),
}
_MODELS = {
    "sums": optim.VectorSums(),
    "pan-private": optim.PanPrivate(),
    "reports": optim.OneMessage(mechanism="privunit"),
    "local": optim.Local(mechanism="privunit"),
}


def steps(problem: str, method: optim.OptimizationMethod, *, model: str = "sums") -> dict[str, Any]:
    """Every number of an optimiser's plan."""
    found = method.plan(_PROBLEMS[problem], population=600, epsilon=1.0, delta=1e-5, model=_MODELS[model])
    return {
        "bound": found.bound,
        "private": found.private,
        "stages": [
            {
                "scheme": str(stage.participation),
                "clients": stage.participation.population,
                "cohort": stage.participation.cohort,
                "steps": stage.participation.num_steps,
                "releases": stage.participation.releases,
                "rule": stage.rule,
                "reach": stage.reach,
                "bound": stage.bound,
                "smoothness": stage.problem.smoothness,
                "noise": stage.oracle.noise,
            }
            for stage in found.stages
        ],
    }


_METHODS: dict[str, tuple[str, optim.OptimizationMethod, str]] = {
    "SGD": ("logistic", optim.SGD(), "sums"),
    "AGD": ("logistic", optim.AGD(), "sums"),
    "AGD, pan-private": ("logistic", optim.AGD(), "pan-private"),
    "AGD, reports": ("logistic", optim.AGD(batch=60), "reports"),
    "GD": ("logistic", optim.GD(num_steps=5), "sums"),
    "GD, local": ("logistic", optim.GD(num_steps=5), "local"),
    "smoothed GD": ("hinge", optim.Smoothed(inner=optim.GD(num_steps=5)), "sums"),
    "phases": ("regularised", optim.Phased(inner=optim.AGD(), phases=2), "sums"),
    "phases, smoothed": (
        "regularised hinge",
        optim.Phased(inner=optim.Smoothed(inner=optim.AGD()), phases=2),
        "sums",
    ),
    "cohorts": ("hinge", optim.CohortSGD(cohort=60, num_steps=4), "sums"),
    "self-sampled": ("hinge", optim.SelfSampledSGD(cohort=60, num_steps=4), "reports"),
    "permutation": ("hinge", optim.PermutationSGD(), "reports"),
}
for _name, (_problem, _method, _model) in _METHODS.items():
    QUESTIONS.add(f"optimiser: {_name}", partial(steps, _problem, _method, model=_model))
QUESTIONS.add(
    "optimisers recommended",
    lambda: {
        name: [str(optim.recommended(problem, interactive=each)) for each in (True, False)]
        for name, problem in _PROBLEMS.items()
    },
)
_STEPS: dict[str, Any] = {"reach": 2.0, "steps": 30}
_REPEATED: dict[str, Any] = _STEPS | {"lipschitz": 1.0, "smoothness": 0.5, "noise": 3.0, "population": 500}
_PROMISED = {
    "averaged": partial(bounds.averaged, **_STEPS, moment=3.0),
    "accelerated": partial(bounds.accelerated, **_STEPS, smoothness=0.5, variance=3.0),
    "repeated": partial(bounds.repeated, **_REPEATED),
    "last": partial(bounds.last_iterate, **_STEPS, moment=3.0),
}
QUESTIONS.add("promised losses: 30", lambda: {name: promised() for name, promised in _PROMISED.items()})
