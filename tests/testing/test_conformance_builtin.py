"""Every registered mechanism, whoever adds it, keeps the promises of its interface."""

from functools import partial

import pytest

from shuffle_plugins.mechanisms import available, get
from shuffle_plugins.testing import Status, check_mechanism

OF_CATEGORIES = available("categories")
DIMS = dict.fromkeys(OF_CATEGORIES, (2, 7)) | {"binary-rr": (1,)}
SAMPLES = 8_000  # as many as test_conformance_planted.py finds most planted defects with


def samples(name):
    """Fewer where each report is searched for."""
    return 2_000 if name.endswith("-seed") else SAMPLES


@pytest.mark.parametrize("name", available("vectors", "categories"))
def test_mechanism_conforms(name):
    largest = DIMS.get(name, (1, 7))[-1:]
    report = check_mechanism(name, dims=largest, local_epsilons=(1.5,), samples=samples(name))
    report.raise_on_failure()
    assert any(result.status is Status.PASSED for result in report.of("builds"))


@pytest.mark.slow
@pytest.mark.parametrize("name", available("vectors", "categories"))
def test_mechanism_conforms_at_extremes(name):
    """ε0 next to nothing and next to no privacy, and in the smallest dimension the ε0 of most others."""
    *smaller, largest = DIMS.get(name, (1, 7))
    loudest = 2.0 if name.endswith("-seed") else 50.0  # a search for a louder one takes too long
    for dims, local_epsilons in (((largest,), (1e-4, loudest)), (smaller, (1.5,))):
        if dims:
            check_mechanism(
                name, dims=dims, local_epsilons=local_epsilons, samples=samples(name)
            ).raise_on_failure()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l1-hadamard", {"public_seed": 1}),
        ("sqkr", {"public_seed": 1}),
        ("sqkr", {"frame": "rotation"}),
        ("l2-bit-planes", {"frame": "kashin"}),
        ("linf-bit-planes", {"levels": 3, "samples": 2}),
        ("linf-block", {"block": 3}),
        ("sampled-bits", {"constants": "thesis"}),
        ("limited-hadamard", {"randomness_bits": 0.9}),
        ("limited-hadamard", {"randomness_bits": 0.4}),
        ("local-hashing", {"buckets": 3}),
        ("local-hashing", {"buckets": 6}),
        ("local-hashing", {"buckets": 9}),
        ("subset-selection", {"size": 3}),
        ("discrete-laplace", {"bits": 8}),
        ("gaussian", {"local_delta": 0.01}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else value,
)
def test_its_variants_conform(name, options):
    build = partial(get, name, **options)
    check_mechanism(
        build,
        dims=(7,),
        local_epsilons=(1.5,),
        radius=None if name in OF_CATEGORIES else 0.5,
        samples=SAMPLES,
    ).raise_on_failure()


@pytest.mark.slow
def test_a_cap_in_many_dimensions_conforms():
    check_mechanism("privunit", dims=(2, 80), samples=SAMPLES).raise_on_failure()


@pytest.mark.slow
def test_a_projection_bounds_its_variance():
    build = partial(get, "projunit", projected_dim=3)
    check_mechanism(
        build, dims=(7,), local_epsilons=(1.5, 50.0), samples=SAMPLES, variance_is_bound=True
    ).raise_on_failure()
