"""What every mechanism promises, whichever it is; in test_conformance_builtin.py it is measured."""

import math

import numpy as np
import pytest
import torch

from shuffle_plugins.core import Reports, Rows
from shuffle_plugins.mechanisms import LocalRandomizer, available, blanket, get
from shuffle_plugins.randomness import SeededRandomness

CASES = [
    ("binary-rr", 1),
    ("linf-coordinate", 1),
    ("linf-coordinate", 6),
    ("privunit", 1),
    ("privunit", 2),
    ("privunit", 7),
    ("privunit", 80),
]
EPSILONS = [1e-4, 1.5, 50.0]
ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}


def takes_vectors(name):
    return isinstance(get(name, local_epsilon=1.0, dim=1 if name == "binary-rr" else 3), LocalRandomizer)


NAMES = available("vectors", "categories")
VECTORS = [*CASES, *((name, 6) for name in NAMES if takes_vectors(name) and (name, 6) not in CASES)]
VECTORS = [case for case in VECTORS if case != ("binary-rr", 6)]
ORACLES = [(name, dim) for name in NAMES if not takes_vectors(name) for dim in (2, 5)]


def named(case):
    return f"{case[0]}-{case[1]}"


@pytest.fixture(params=CASES, ids=named)
def case(request):
    return request.param


@pytest.fixture(params=VECTORS, ids=named)
def vectors(request):
    return request.param


@pytest.fixture(params=ORACLES, ids=named)
def oracle(request):
    return request.param


@pytest.fixture(params=[*VECTORS, *ORACLES], ids=named)
def either(request):
    return request.param


def build(case, *, local_epsilon=1.5, radius=0.5):
    name, dim = case
    if case in ORACLES:
        return get(name, local_epsilon=local_epsilon, dim=dim)
    return get(name, local_epsilon=local_epsilon, dim=dim, radius=radius)


def datums(mechanism, clients):
    """A batch of the domain: rows in the ball, or categories."""
    if isinstance(mechanism, LocalRandomizer):
        return mechanism.clip(batch(mechanism, clients))
    return torch.arange(clients) % mechanism.dim


def batch(mechanism, clients, *, seed=1):
    """Rows of many lengths, inside and outside the ball, in two blocks where there are two columns."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, mechanism.dim, generator=generator)
    x *= mechanism.radius * torch.linspace(0.1, 2, clients).unsqueeze(1) / mechanism.dim**0.5
    x[0] = 0
    return x


def in_blocks(x):
    return Rows([x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]])


def worst_z(estimates, truth):
    """Largest deviation of the mean of independent estimates (draws, dim) in its standard errors."""
    errors = estimates.double() - truth.double()
    spread = errors.std(dim=0) / len(estimates) ** 0.5
    return float((errors.mean(dim=0).abs() / spread.clamp(min=1e-12)).max())


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_reports_are_unbiased(case, epsilon):
    mechanism = build(case, local_epsilon=epsilon)
    rows = batch(mechanism, 5)
    clipped = mechanism.clip(rows)
    source = SeededRandomness(11)
    means = torch.stack(
        [
            mechanism.aggregate(
                mechanism.randomize(in_blocks(rows.repeat(40, 1)), randomness=source, clip=True)
            )
            for _ in range(200)
        ]
    )
    assert worst_z(means, clipped.mean(dim=0)) < 5
    inside = torch.stack(
        [
            mechanism.aggregate(mechanism.randomize(clipped.repeat(40, 1), randomness=source))
            for _ in range(200)
        ]
    )
    assert worst_z(inside, clipped.mean(dim=0)) < 5


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_randomize_sum_is_unbiased(case, epsilon):
    mechanism = build(case, local_epsilon=epsilon)
    rows = batch(mechanism, 40)
    clipped = mechanism.clip(rows)
    source = SeededRandomness(12)
    sums = torch.stack([mechanism.randomize_sum(in_blocks(rows), randomness=source) for _ in range(300)])
    assert worst_z(sums, clipped.sum(dim=0)) < 5
    expected = float(mechanism.variance(clipped).sum())
    realised = float((sums.double() - clipped.double().sum(dim=0)).square().sum(dim=1).mean())
    assert realised == pytest.approx(expected, rel=5 * math.sqrt(2 / 300))


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 6.0])
def test_variance_is_the_formula(case, epsilon):
    mechanism = build(case, local_epsilon=epsilon)
    rows = batch(mechanism, 4)
    rows = mechanism.clip(rows)
    formula = mechanism.variance(rows)
    for row, expected in zip(rows, formula, strict=True):
        reports = mechanism.randomize(row.repeat(1500, 1), randomness=SeededRandomness(13))
        values = torch.stack([mechanism.sum(reports.narrow(i, i + 1)) for i in range(1500)])
        assert float((values - row).double().square().sum(dim=1).mean()) == pytest.approx(
            float(expected), rel=0.02 + 5 * float((values - row).square().sum(1).std() / expected) / 1500**0.5
        )


def test_clip_brings_rows_into_the_ball_and_leaves_those_inside(vectors):
    mechanism = build(vectors)
    rows = batch(mechanism, 30)
    clipped = mechanism.clip(in_blocks(rows))
    order = ORDERS[mechanism.norm]
    before, after = rows.norm(p=order, dim=1), clipped.norm(p=order, dim=1)
    outside = before > mechanism.radius
    assert bool(outside.any())
    assert not bool(outside.all())
    torch.testing.assert_close(clipped[~outside], rows[~outside])
    torch.testing.assert_close(after[outside], torch.full_like(after[outside], mechanism.radius))


def test_l2_mechanisms_keep_a_long_rows_direction_and_linf_its_small_coordinates():
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.1, -5.0, 0.2]])
    scaled = get("privunit", local_epsilon=1.0, dim=3, radius=1.0).clip(rows)
    torch.testing.assert_close(scaled[0], torch.tensor([0.6, 0.8, 0.0]))
    projected = get("linf-coordinate", local_epsilon=1.0, dim=3, radius=1.0).clip(rows)
    torch.testing.assert_close(projected[1], torch.tensor([0.1, -1.0, 0.2]))


def test_clipping_while_randomising_is_clipping_first(vectors):
    mechanism = build(vectors)
    rows = batch(mechanism, 64).double()
    clipped = mechanism.clip(rows)
    before = rows.clone()
    one_pass = mechanism.randomize(rows, randomness=SeededRandomness(2), clip=True)
    two_passes = mechanism.randomize(clipped, randomness=SeededRandomness(2))
    torch.testing.assert_close(mechanism.sum(one_pass), mechanism.sum(two_passes), rtol=1e-5, atol=1e-5)
    assert torch.equal(rows, before)


def test_seed_determines_reports_and_default_randomness_does_not(either):
    mechanism = build(either, local_epsilon=0.1)
    rows = datums(mechanism, 200)

    def sent(randomness):
        return mechanism.randomize(rows, randomness=randomness).to_bytes()

    assert sent(SeededRandomness(1)) == sent(SeededRandomness(1))
    assert sent(SeededRandomness(1)) != sent(SeededRandomness(2))
    assert sent(None) != sent(None)
    sums = [mechanism.randomize_sum(rows, randomness=SeededRandomness(seed)) for seed in (1, 1)]
    assert torch.equal(*sums)


def test_wire_size_and_round_trip(either):
    mechanism = build(either)
    reports = mechanism.randomize(datums(mechanism, 37), randomness=SeededRandomness(1))
    data = reports.to_bytes()
    assert reports.bits_per_report == mechanism.bits_per_report
    assert len(data) == reports.header_bytes + (37 * mechanism.bits_per_report + 7) // 8
    assert torch.equal(mechanism.sum(Reports.from_bytes(data)), mechanism.sum(reports))


@pytest.mark.parametrize(
    ("name", "dim", "bits"),
    [
        ("binary-rr", 1, 1),
        ("linf-coordinate", 1, 1),
        ("linf-coordinate", 6, 4),
        ("linf-coordinate", 8, 4),
        ("linf-coordinate", 203_530, 19),
        ("privunit", 3, 96),
    ],
)
def test_bits_per_report(name, dim, bits):
    assert get(name, local_epsilon=1.0, dim=dim).bits_per_report == bits


def test_order_does_not_matter_and_chunks_add_up(either):
    mechanism = build(either)
    reports = mechanism.randomize(datums(mechanism, 50), randomness=SeededRandomness(1))
    total = mechanism.sum(reports)
    shuffled = reports.permute(SeededRandomness(2).permutation(50))
    torch.testing.assert_close(mechanism.sum(shuffled), total, rtol=1e-4, atol=1e-4)
    parts = mechanism.sum(reports.narrow(0, 20)) + mechanism.sum(reports.narrow(20, 50))
    torch.testing.assert_close(parts, total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mechanism.aggregate(reports) * 50, total)


def test_empty_batch(either):
    mechanism = build(either)
    nobody = datums(mechanism, 3)[:0]
    reports = mechanism.randomize(nobody)
    assert len(reports) == 0
    assert torch.equal(mechanism.sum(reports), torch.zeros(mechanism.dim))
    assert torch.equal(mechanism.randomize_sum(nobody), torch.zeros(mechanism.dim))
    assert len(Reports.from_bytes(reports.to_bytes())) == 0
    with pytest.raises(ValueError, match="no reports"):
        mechanism.aggregate(reports)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_entries_that_are_not_finite_are_refused(vectors, bad):
    mechanism = build(vectors)
    rows = batch(mechanism, 50)
    rows[43, -1] = bad
    for clip in (False, True):
        with pytest.raises(ValueError, match="NaN or infinite"):
            mechanism.randomize(rows, clip=clip)
        with pytest.raises(ValueError, match="NaN or infinite"):
            mechanism.randomize_sum(rows, clip=clip)


def test_rows_outside_the_ball_are_refused_without_clip(vectors):
    mechanism = build(vectors)
    rows = batch(mechanism, 50)
    rows = mechanism.clip(rows)
    mechanism.randomize(rows)
    order = ORDERS[mechanism.norm]
    largest = int(rows.norm(p=order, dim=1).argmax())
    rows[largest] *= 1.001
    for draw in (mechanism.randomize, mechanism.randomize_sum):
        with pytest.raises(ValueError, match="clip=True"):
            draw(rows, clip=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_other_dtypes_are_refused(vectors, dtype):
    mechanism = build(vectors)
    with pytest.raises(ValueError, match="floating"):
        mechanism.randomize(torch.zeros(3, mechanism.dim, dtype=dtype))


def test_arrays_are_refused(vectors):
    mechanism = build(vectors)
    for draw in (mechanism.randomize, mechanism.randomize_sum, mechanism.clip, mechanism.variance):
        with pytest.raises(TypeError, match="torch tensors, got ndarray"):
            draw(np.zeros((3, mechanism.dim), dtype=np.float32))


def test_gradients_are_not_followed(vectors):
    mechanism = build(vectors)
    rows = batch(mechanism, 70).requires_grad_()
    for given in (rows, in_blocks(rows)):
        reports = mechanism.randomize(given, clip=True)
        released = [mechanism.sum(reports), mechanism.randomize_sum(given), mechanism.variance(given)]
        assert not any(value.requires_grad for value in [*released, mechanism.clip(given)])


def test_other_shapes_are_refused(vectors):
    mechanism = build(vectors)
    with pytest.raises(ValueError, match=f"dimension {mechanism.dim}"):
        mechanism.randomize(torch.zeros(3, mechanism.dim + 1))
    with pytest.raises(ValueError, match="clients, dim"):
        mechanism.randomize(torch.zeros(mechanism.dim))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_dtype_is_taken(vectors, dtype):
    mechanism = build(vectors)
    rows = batch(mechanism, 40).to(dtype)
    assert mechanism.sum(mechanism.randomize(rows, clip=True)).isfinite().all()
    total = mechanism.randomize_sum(rows)
    assert total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_foreign_reports_are_refused(either):
    mechanism = build(either)
    name, dim = either
    reports = mechanism.randomize(datums(mechanism, 3))
    for foreign in (
        Reports(mechanism="another", dim=dim, fields=reports.fields),
        Reports(mechanism=name, dim=dim + 1, fields=reports.fields),
        Reports(mechanism=name, dim=dim, fields=reports.fields * 2),
    ):
        with pytest.raises(ValueError, match="these are reports of"):
            mechanism.sum(foreign)


@pytest.mark.parametrize(
    "epsilon", [0, -1.0, 1e-300, 1e-17, 9e-10, math.nan, math.inf, 501.0, "1", True, None]
)
def test_bad_local_epsilon_is_refused(either, epsilon):
    with pytest.raises(ValueError, match="local_epsilon"):
        build(either, local_epsilon=epsilon)
    with pytest.raises(ValueError, match="local_epsilon"):
        blanket(either[0], local_epsilon=epsilon, dim=either[1])


def test_the_smallest_local_epsilon_still_says_something(either):
    mechanism = build(either, local_epsilon=1e-9)
    rows = datums(mechanism, 3)
    assert bool((mechanism.variance(rows) > 0).all())
    assert bool(mechanism.randomize_sum(rows, randomness=SeededRandomness(1)).isfinite().all())
    if mechanism.local_delta == 0:
        assert 0 < mechanism.blanket().mass <= 1


@pytest.mark.parametrize("radius", [0, -1.0, math.nan, math.inf, "1", True])
def test_bad_radius_is_refused(vectors, radius):
    with pytest.raises(ValueError, match="radius"):
        build(vectors, radius=radius)


@pytest.mark.parametrize("dim", [0, -1, 1.0, True, 1 << 60])
@pytest.mark.parametrize("name", NAMES)
def test_bad_dim_is_refused(name, dim):
    with pytest.raises(ValueError, match="dim"):
        get(name, local_epsilon=1.0, dim=dim)


@pytest.mark.parametrize("epsilon", [1e-4, 1.0, 50.0, 500.0])
def test_blanket_holds_one_report(either, epsilon):
    mechanism = build(either, local_epsilon=epsilon)
    if mechanism.local_delta > 0:
        pytest.skip("no blanket holds with δ0; the round carries it")
    own = mechanism.blanket()
    assert own.local_epsilon == epsilon
    assert 0 < own.mass <= 1
    assert own.differing <= 1 / (math.exp(epsilon) + 1) * (1 + 1e-9)
