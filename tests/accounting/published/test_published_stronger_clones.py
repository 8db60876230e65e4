"""The 2022 closed forms: above the pair that carries them here."""

import pytest

from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.accounting.published.shuffles import binary_pair

GRID = [
    (local_epsilon, n, delta)
    for local_epsilon in (0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0)
    for n in (10**2, 10**3, 10**4, 10**6, 10**9)
    for delta in (1e-2, 1e-5, 1e-10, 1e-15)
]


@pytest.mark.parametrize(
    ("closed_form", "pair"),
    [
        (shuffles.stronger_clone_bound, binary_pair),
        (shuffles.clone_bound, shuffles.clone_pair),
    ],
)
def test_closed_forms_lie_above_their_pairs_wherever_they_are_stated(closed_form, pair) -> None:
    stated = 0
    for local_epsilon, n, delta in GRID:
        question = {"local_epsilon": local_epsilon, "cohort": n}
        try:
            claimed = closed_form(**question, delta=delta)
        except ValueError:
            continue
        stated += 1
        if claimed < local_epsilon:
            assert pair(**question).delta(claimed)[1] <= delta, (local_epsilon, n, delta)
    assert stated > 90
