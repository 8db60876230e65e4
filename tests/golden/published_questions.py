"""What published bounds say, on their own and beside the accountant's; calibrations; confidence limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from accountant_questions import DELTA, coins, everybody, laplace, shuffled, tagged
from answers import Questions, answer

from shuffle_plugins.accounting import (
    ALL_PUBLISHED,
    FEW_PUBLISHED,
    Adversary,
    Sampling,
    ShuffleRound,
    binary_pair,
    calibrate_cohort,
    calibrate_local_epsilon,
    calibrate_num_steps,
    compare,
)
from shuffle_plugins.accounting.composition import points
from shuffle_plugins.accounting.published import (
    PUBLISHED_BOUNDS,
    bbg19,
    check_ins,
    clones,
    efm19,
    rdp_subsampling,
    shuffle_rdp,
    stronger_clones,
    subsampled_rdp,
)
from shuffle_plugins.core import clopper_pearson_lower, clopper_pearson_upper, epsilon_lower_bound
from shuffle_plugins.mechanisms import registry

QUESTIONS = Questions()
ORDERS = (2, 3, 8, 40, 200)

# -- the catalogue ------------------------------------------------------------------------------------------

BOUNDS = {bound.name: bound for bound in PUBLISHED_BOUNDS}
NAMES = (
    "subsampled shuffle RDP, published",
    "shuffle RDP, first bound",
    "shuffle RDP, second bound",
    "shuffle RDP, Poisson sampling",
    "clones, closed form",
    "clones, numerical",
    "clones, RDP",
    "stronger clones, closed form",
    "stronger clones, numerical",
    "stronger clones, RDP",
    "privacy blanket, Bennett",
    "privacy blanket, Hoeffding",
    "random check-ins, shuffling",
    "amplification by shuffling",
    "amplification by shuffling, RDP",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "sampled": {"local_epsilon": 1.0, "population": 100_000, "cohort": 10_000, "num_steps": 100},
    "everybody": {"local_epsilon": 0.5, "population": 20_000, "cohort": 20_000, "num_steps": 1},
    "quiet": {"local_epsilon": 0.1, "population": 5_000, "cohort": 1_000, "num_steps": 1_000},
    "loud": {"local_epsilon": 4.0, "population": 10**6, "cohort": 10**6, "num_steps": 10},
    "few": {"local_epsilon": 2.0, "population": 40, "cohort": 20, "num_steps": 2},
}
# Bounds that came later are in the catalogue too; these fifteen keep their names, order and answers.
QUESTIONS.add(
    "names",
    lambda: [
        tuple(name for name in BOUNDS if name in NAMES) == NAMES,
        [name for name in ALL_PUBLISHED if name in NAMES],
        list(FEW_PUBLISHED),
    ],
)
QUESTIONS.add(
    "which are valid", lambda: {name: [BOUNDS[name].valid, BOUNDS[name].adaptive] for name in NAMES}
)
for _name in NAMES:
    for _setting, _fields in SETTINGS.items():
        QUESTIONS.add(
            f"{_name}: {_setting}",
            lambda name=_name, fields=_fields: BOUNDS[name].epsilon(**fields, delta=DELTA),
        )

# -- one shuffle --------------------------------------------------------------------------------------------

_SHUFFLES: dict[str, Callable[..., Any]] = {
    "check-ins": check_ins.check_in_shuffle_bound,
    "clones, closed form": clones.clone_bound,
    "clones, numerical": lambda *, delta, **shuffle: clones.clone_pair(**shuffle).epsilon(delta),
    "clones, 10 categories": partial(clones.k_ary_response_bound, categories=10),
    "clones, binary response from below": clones.binary_response_lower,
    "clones, (ε0, δ0)": partial(clones.approximate_ldp, local_delta=1e-12),
    "erlingsson": efm19.erlingsson_bound,
    "stronger clones, closed form": stronger_clones.stronger_clone_bound,
    "stronger clones, numerical": lambda *, delta, **shuffle: binary_pair(**shuffle).epsilon(delta),
}
for _inequality in (bbg19.bennett, bbg19.hoeffding):
    for _randomizer in ("generic", "laplace", "k-ary"):
        _SHUFFLES[f"blanket, {_inequality.__name__}, {_randomizer}"] = (
            lambda *, local_epsilon, cohort, delta, inequality=_inequality, kind=_randomizer: (
                bbg19.blanket_bound(
                    inequality=inequality,
                    variable_at={
                        "generic": partial(bbg19.generic_variable, local_epsilon=local_epsilon),
                        "laplace": partial(bbg19.laplace_variable, local_epsilon=local_epsilon),
                        "k-ary": partial(
                            bbg19.k_ary_response_variable, local_epsilon=local_epsilon, categories=5
                        ),
                    }[kind],
                    local_epsilon=local_epsilon,
                    cohort=cohort,
                    delta=delta,
                )
            )
        )
for _name, _bound in _SHUFFLES.items():
    QUESTIONS.add(
        f"one shuffle: {_name}",
        lambda bound=_bound: {
            f"{level} {reports} {delta}": answer(
                partial(bound, local_epsilon=level, cohort=reports, delta=delta)
            )
            for level in (0.25, 1.0, 3.0)
            for reports in (500, 100_000)
            for delta in (1e-3, 1e-8)
        },
    )
_CURVES: dict[str, Callable[..., Any]] = {
    "clones": lambda *, orders, **shuffle: clones.clone_pair(**shuffle).rdp(orders),
    "erlingsson": efm19.erlingsson_rdp,
    "stronger clones": lambda *, orders, **shuffle: binary_pair(**shuffle).rdp(orders),
    "stronger clones, closed form": lambda *, orders, **fields: stronger_clones.stronger_clone_rdp_bound(
        orders=orders[:3], **fields
    ),
    "shuffle RDP, first": shuffle_rdp.first_shuffle_rdp,
    "shuffle RDP, first, split": partial(shuffle_rdp.first_shuffle_rdp, split=0.3),
    "shuffle RDP, second": shuffle_rdp.second_shuffle_rdp,
    "shuffle RDP, corollary": lambda *, orders, **fields: shuffle_rdp.shuffle_rdp_corollary(
        orders=orders[:2], **fields
    ),
    "shuffle RDP, from below": shuffle_rdp.shuffle_rdp_lower_bound,
}
for _name, _curve in _CURVES.items():
    for _level in (0.25, 1.0, 3.0):
        for _reports in (200, 20_000):
            QUESTIONS.add(
                f"Rényi curve: {_name}, {_level}, {_reports}",
                partial(_curve, orders=ORDERS, local_epsilon=_level, cohort=_reports),
            )
for _level in (0.25, 1.0, 3.0):
    for _name, _curve in {
        "above": subsampled_rdp.subsampled_rdp_bound,
        "below": subsampled_rdp.subsampled_rdp_lower_bound,
    }.items():
        QUESTIONS.add(
            f"subsampled curve: {_name}, {_level}",
            partial(_curve, orders=ORDERS, local_epsilon=_level, population=10_000, cohort=500),
        )
    QUESTIONS.add(
        f"ternary divergence: {_level}",
        partial(subsampled_rdp.log_ternary_chi, orders=ORDERS, local_epsilon=_level, cohort=500),
    )
    QUESTIONS.add(
        f"window of check-ins: {_level}",
        lambda e=_level: [
            check_ins.check_in_window_bound(local_epsilon=e, window=500, participation=p, delta=1e-6)
            for p in (1.0, 0.3)
        ],
    )
    QUESTIONS.add(
        f"local delta: {_level}",
        lambda e=_level: clones.local_delta_cost(local_epsilon=e, local_delta=1e-10, cohort=300, epsilon=0.5),
    )
_EVERY = range(2, 41)
QUESTIONS.add(
    "sampling of a curve",
    lambda: {
        "k of n": rdp_subsampling.without_replacement(
            orders=_EVERY, rdp=[0.02 * order for order in _EVERY], sampling_rate=0.05
        ),
        "pure": rdp_subsampling.without_replacement(
            orders=_EVERY, rdp=[0.02 * order for order in _EVERY], sampling_rate=0.05, pure_epsilon=1.0
        ),
        "poisson": rdp_subsampling.poisson(
            orders=_EVERY, rdp=[0.02 * order for order in _EVERY], sampling_rate=0.05
        ),
        "ternary": subsampled_rdp.subsample_ternary_chi(
            orders=_EVERY, log_chi=[-5.0 + 0.1 * order for order in _EVERY], sampling_rate=0.05
        ),
    },
)
QUESTIONS.add(
    "points",
    lambda: {
        "sampled": points.amplify_by_sampling(epsilon=0.7, delta=1e-6, sampling_rate=0.1),
        "composed": [
            points.strong_composition(epsilon=e, num_steps=t, delta_slack=1e-6)
            for e in (0.01, 0.3, 2.0)
            for t in (1, 50, 10_000)
        ],
        "specific": clones.specific_randomizer(distance=0.4, shared=0.1, cohort=10_000, delta=1e-6),
    },
)

# -- beside the accountant's --------------------------------------------------------------------------------


def compared(
    make: Callable[[], ShuffleRound], *, num_steps: int, method: Any = "pld", published: Any = NAMES
) -> dict[str, Any]:
    found = compare(
        shuffle_round=make(), num_steps=num_steps, delta=DELTA, method=method, published=published
    )
    return {
        "interval": {"lower": found.interval.lower, "upper": found.interval.upper},
        "bounds": [[bound.name, bound.kind, bound.epsilon] for bound in found.bounds],
        "out of range": [each.name for each in found.out_of_range],
    }


_COMPARED: dict[str, Callable[[], ShuffleRound]] = {
    "k of n": shuffled,
    "server": partial(shuffled, adversary=Adversary.SERVER),
    "everybody": partial(everybody, 5_000),
    "epoch": partial(shuffled, sampling=Sampling.EPOCH),
    "poisson": partial(shuffled, sampling=Sampling.POISSON),
    "check-in": partial(shuffled, sampling=Sampling.CHECK_IN),
    "single pass": partial(shuffled, sampling=Sampling.SINGLE_PASS),
    "k-rr": lambda: shuffled(mechanism="k-rr", blanket=registry.blanket("k-rr", local_epsilon=1.0, dim=20)),
    "(ε0, δ0)": partial(shuffled, local_delta=1e-11),
}
for _name, _make in _COMPARED.items():
    QUESTIONS.add(f"compared: {_name}", partial(compared, _make, num_steps=20))
QUESTIONS.add("compared: one round", partial(compared, shuffled, num_steps=1))
QUESTIONS.add("compared: Rényi", partial(compared, shuffled, num_steps=20, method="rdp"))
QUESTIONS.add("compared: two of them", partial(compared, shuffled, num_steps=20, published=FEW_PUBLISHED))

# -- calibrations -------------------------------------------------------------------------------------------

_TARGETS = {"target_epsilon": 0.8, "delta": DELTA}
_OBSERVER, _SERVER = Adversary.MODEL_OBSERVER, Adversary.SERVER
for _scheme, _adversary in (
    (Sampling.WITHOUT_REPLACEMENT, _OBSERVER),
    (Sampling.POISSON, _OBSERVER),
    (Sampling.CHECK_IN, _OBSERVER),
    (Sampling.EPOCH, _SERVER),
):
    QUESTIONS.add(
        f"largest local epsilon: {_scheme}, {_adversary}",
        partial(
            calibrate_local_epsilon,
            **_TARGETS,
            channel_fixed=True,
            population=2_000,
            cohort=200,
            num_steps=10,
            sampling=_scheme,
            adversary=_adversary,
        ),
    )
for _scheme, _adversary in (
    (Sampling.FULL, _OBSERVER),
    (Sampling.WITHOUT_REPLACEMENT, _SERVER),
    (Sampling.SINGLE_PASS, _OBSERVER),
):
    QUESTIONS.add(
        f"most rounds: {_scheme}, {_adversary}",
        lambda scheme=_scheme, adversary=_adversary: calibrate_num_steps(
            **_TARGETS,
            shuffle_round=shuffled(
                local_epsilon=0.6,
                cohort=2_000 if scheme is Sampling.FULL else 200,
                sampling=scheme,
                adversary=adversary,
            ),
        ),
    )
for _scheme in (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL, Sampling.CHECK_IN, Sampling.EPOCH):
    QUESTIONS.add(
        f"largest cohort: {_scheme}, {_OBSERVER}",
        partial(
            calibrate_cohort,
            **_TARGETS,
            channel_fixed=True,
            population=500,
            local_epsilon=0.5,
            num_steps=5,
            sampling=_scheme,
            adversary=_OBSERVER,
        ),
    )
for _name, _other in {"coins": coins, "laplace": laplace, "tags": tagged}.items():
    QUESTIONS.add(
        f"most rounds: {_name}",
        lambda make=_other: calibrate_num_steps(target_epsilon=2.0, delta=DELTA, shuffle_round=make()),
    )
for _mechanism, _dim in {"k-rr": 20, "privunit": 50, "linf-block": 100}.items():
    QUESTIONS.add(
        f"largest local epsilon: {_mechanism}",
        lambda name=_mechanism, dim=_dim: calibrate_local_epsilon(
            **_TARGETS,
            channel_fixed=True,
            population=2_000,
            cohort=200,
            num_steps=10,
            mechanism=name,
            blanket_factory=lambda level: registry.blanket(name, local_epsilon=level, dim=dim),
        ),
    )
QUESTIONS.add(
    "largest local epsilon: Rényi",
    partial(calibrate_local_epsilon, **_TARGETS, population=2_000, cohort=200, num_steps=10, method="rdp"),
)
QUESTIONS.add(
    "largest local epsilon: out of reach",
    partial(
        calibrate_local_epsilon,
        target_epsilon=1e-4,
        delta=1e-12,
        population=10,
        cohort=10,
        num_steps=1_000,
    ),
)

# -- confidence ---------------------------------------------------------------------------------------------

for _error in (0.05, 1e-6):
    for _limit in (clopper_pearson_lower, clopper_pearson_upper):
        QUESTIONS.add(
            f"{_limit.__name__}: {_error}",
            partial(_limit, [0, 1, 7, 500, 999, 1_000], 1_000, error=_error),
        )
for _delta in (0.0, 1e-3):
    QUESTIONS.add(
        f"attained epsilon: {_delta}",
        partial(
            epsilon_lower_bound,
            [900, 500, 10, 0],
            [10, 100, 10, 0],
            trials=1_000,
            delta=_delta,
            confidence=0.99,
        ),
    )
