import pytest
import torch

from shuffle_plugins.features import ChannelWhitening, Scattering, dead_leaves


def drawn(*, images: int = 600, seed: int = 0) -> torch.Tensor:
    """Coefficients of 3 channels of unlike means and sizes, two of them correlated, at 6 x 6 places."""
    mix = torch.tensor([[30.0, 0, 0], [2, 1, 0], [0, 0, 0.1]])
    normal = torch.randn(images, 3, 36, generator=torch.Generator().manual_seed(seed))
    return (mix @ normal + torch.tensor([[100.0], [-3], [0]])).view(images, 3, 6, 6)


def correlations(rows: torch.Tensor) -> torch.Tensor:
    return torch.corrcoef(rows.view(len(rows), 3, -1).transpose(0, 1).flatten(1).double())


def test_the_stronger_the_less_correlated():
    seen = drawn(seed=1)
    plain, half, whole = (
        ChannelWhitening.fit(drawn(), strength=strength)(seen) for strength in (0.0, 0.5, 1.0)
    )
    before = float(torch.corrcoef(seen.transpose(0, 1).flatten(1))[0, 1])
    assert before == pytest.approx(0.89, abs=0.02)
    assert float(correlations(plain)[0, 1]) == pytest.approx(before, abs=0.02)
    assert 0.4 < float(correlations(half)[0, 1]) < 0.7
    torch.testing.assert_close(correlations(whole), torch.eye(3).double(), rtol=0, atol=0.03)
    for rows in (plain, half, whole):
        channels = rows.view(len(rows), 3, 36)
        assert float(channels.mean(dim=(0, 2)).abs().max()) < 0.01
        deviations = channels.std(dim=(0, 2))
        assert float(deviations.max() / deviations.min()) < 1.2


def test_what_is_fitted_is_what_the_formula_says():
    coefficients = drawn()
    whitening = ChannelWhitening.fit(coefficients, strength=0.5)
    mean = coefficients.mean(dim=(0, 2, 3))
    deviation = coefficients.transpose(0, 1).flatten(1).std(dim=1)
    torch.testing.assert_close(whitening.mean, mean)
    scaled = ((coefficients - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)).double().flatten(2)
    scaled = scaled / scaled.square().sum(dim=(1, 2), keepdim=True).sqrt()
    covariance = torch.cov((scaled - scaled.mean(dim=0)).transpose(0, 1).flatten(1))
    fitted = whitening.matrix.double() * deviation
    expected = 3 * covariance / covariance.trace() + 1e-3 * torch.eye(3)
    torch.testing.assert_close(torch.linalg.matrix_power(fitted, -4), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_image_is_changed_by_itself_and_has_length_one(dtype):
    whitening = ChannelWhitening.fit(drawn())
    coefficients = drawn(images=1003).to(dtype)
    rows = whitening(coefficients)
    assert (rows.dtype, rows.shape) == (dtype, (1003, 108))
    torch.testing.assert_close(rows.float().norm(dim=1), torch.ones(1003), rtol=0, atol=1e-3)
    torch.testing.assert_close(whitening(coefficients[1001:]), rows[1001:])
    direct = whitening.matrix @ (coefficients[0].float().flatten(1) - whitening.mean[:, None])
    torch.testing.assert_close(rows[0].float(), (direct / direct.norm()).flatten(), rtol=0, atol=1e-3)


def test_colours_are_channels():
    scattering = Scattering(height=8, width=8, directions=2)
    coefficients = scattering(dead_leaves(300, height=8, width=8, colours=3))
    whitening = ChannelWhitening.fit(coefficients)
    rows = whitening(coefficients)
    assert rows.shape == (300, 3 * 9 * 4)
    torch.testing.assert_close(rows, whitening(coefficients.flatten(1, 2)))


def test_dead_leaves_are_discs_of_any_colours_and_the_same_in_every_call():
    leaves = dead_leaves(300, height=16, width=24, colours=2)
    assert leaves.shape == (300, 2, 16, 24)
    assert 0 <= float(leaves.min()) < 0.05 < 0.95 < float(leaves.max()) <= 1
    assert float(leaves.mean()) == pytest.approx(0.5, abs=0.03)
    beside = torch.stack([leaves[..., 1:].flatten(), leaves[..., :-1].flatten()])
    assert 0.6 < float(torch.corrcoef(beside)[0, 1]) < 0.99
    assert torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2))
    assert not torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2, seed=1))
    with pytest.raises(ValueError, match="seed"):
        dead_leaves(3, height=8, width=8, seed=-1)


def test_the_default_number_type_and_gradients_change_nothing():
    leaves = dead_leaves(3, height=8, width=8)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(leaves, dead_leaves(3, height=8, width=8))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not ChannelWhitening.fit(drawn().requires_grad_()).matrix.requires_grad


@pytest.mark.parametrize(
    ("coefficients", "match"),
    [
        (torch.ones(9, 6, 2, 2), "the same everywhere"),
        (torch.full((9, 6, 2, 2), torch.nan), "finite"),
        (1 + 1e-9 * torch.rand(9, 6, 2, 2, dtype=torch.float64), "the same everywhere"),
        (1e-42 * torch.rand(9, 6, 2, 2, dtype=torch.float64), "ordinary size"),
        (torch.rand(5, 6, 2, 2), "got 5 of 6 channels"),
        (torch.rand(1, 6, 2, 2).expand(9, 6, 2, 2), "several pictures"),
    ],
)
def test_refuses_coefficients_that_tell_no_covariance(coefficients, match):
    with pytest.raises(ValueError, match=match):
        ChannelWhitening.fit(coefficients)
