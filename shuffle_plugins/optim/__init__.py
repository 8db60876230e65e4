"""Private stochastic convex optimisation in the shuffle model.

Describe what to minimise by a :class:`Problem`, choose a method, and call :func:`minimize`, or ``plan`` it,
read the plan and ``run`` it. Cheu, Joseph, Mao, Peng 2022, "Shuffle Private Stochastic Convex Optimization".
"""

from shuffle_plugins.optim.budget import BudgetExceeded, Spending
from shuffle_plugins.optim.domains import Ball, Box, Domain
from shuffle_plugins.optim.methods import (
    AGD,
    GD,
    SGD,
    CohortSGD,
    Method,
    PermutationSGD,
    Phased,
    SelfSampledSGD,
    Smoothed,
)
from shuffle_plugins.optim.minimize import minimize, recommended
from shuffle_plugins.optim.objectives import (
    assign,
    from_module,
    logistic_regression,
    support_vector_machine,
)
from shuffle_plugins.optim.oracles import (
    GradientModel,
    GradientOracle,
    Local,
    PanPrivate,
    Reports,
    RunningSum,
    Target,
    Unprotected,
    VectorSums,
)
from shuffle_plugins.optim.participation import Participation, Scheme
from shuffle_plugins.optim.plans import Plan, Result, Stage
from shuffle_plugins.optim.problems import Problem
from shuffle_plugins.protocols.errors import OutOfReach

__all__ = [
    "AGD",
    "GD",
    "SGD",
    "Ball",
    "Box",
    "BudgetExceeded",
    "CohortSGD",
    "Domain",
    "GradientModel",
    "GradientOracle",
    "Local",
    "Method",
    "OutOfReach",
    "PanPrivate",
    "Participation",
    "PermutationSGD",
    "Phased",
    "Plan",
    "Problem",
    "Reports",
    "Result",
    "RunningSum",
    "Scheme",
    "SelfSampledSGD",
    "Smoothed",
    "Spending",
    "Stage",
    "Target",
    "Unprotected",
    "VectorSums",
    "assign",
    "from_module",
    "logistic_regression",
    "minimize",
    "recommended",
    "support_vector_machine",
]
