import pytest
import torch

from shuffle_plugins.features import ChannelWhitening, Scattering, dead_leaves, group_normalized


def covariance(rows: torch.Tensor, channels: int) -> torch.Tensor:
    return torch.cov(
        (rows - rows.mean(dim=0)).unflatten(1, (channels, -1)).transpose(0, 1).flatten(1).double()
    )


def eigenvalues(rows: torch.Tensor, channels: int) -> torch.Tensor:
    return torch.linalg.eigvalsh(covariance(rows, channels))


def drawn() -> torch.Tensor:
    """Rows of 3 correlated channels at 5 places."""
    mix = torch.tensor([[3.0, 0, 0], [1, 1, 0], [0, 1, 0.2]])
    return (mix @ torch.randn(4000, 3, 5, generator=torch.Generator().manual_seed(0)) + 2).flatten(1)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_eigenvalues_fall_by_the_strength(strength):
    rows = drawn()
    whitening = ChannelWhitening.fit(rows, channels=3, strength=strength)
    before = eigenvalues(rows, 3)
    mixed = (whitening.matrix @ rows.unflatten(1, (3, -1))).flatten(1)
    expected = before * (before / before.mean() + 1e-3) ** -strength
    torch.testing.assert_close(eigenvalues(mixed, 3), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(whitening.matrix, whitening.matrix.T)
    if strength == 1:
        torch.testing.assert_close(
            covariance(mixed, 3) / before.mean(), torch.eye(3).double(), rtol=0, atol=0.1
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_row_is_changed_by_itself_and_has_length_one(dtype):
    whitening = ChannelWhitening.fit(drawn(), channels=3)
    rows = drawn()[:1003].to(dtype)
    rows[7] = 0
    found = whitening(rows)
    assert (found.dtype, found.shape) == (dtype, rows.shape)
    lengths = torch.ones(1003).index_fill(0, torch.tensor(7), 0)
    torch.testing.assert_close(found.float().norm(dim=1), lengths, rtol=0, atol=1e-3)
    torch.testing.assert_close(whitening(rows[1001:]), found[1001:])
    direct = whitening.matrix @ rows[0].float().view(3, 5)
    torch.testing.assert_close(found[0].float(), (direct / direct.norm()).flatten(), rtol=0, atol=1e-3)


def test_channels_of_scattering_become_more_equal_on_pictures_that_were_not_seen():
    scattering = Scattering(height=16, width=16)

    def rows(seed: int) -> torch.Tensor:
        pictures = dead_leaves(200, height=16, width=16, seed=seed)
        return group_normalized(scattering(pictures), groups=27)

    whitening, others = ChannelWhitening.fit(rows(0), channels=81), rows(1)
    before, after = (eigenvalues(each, 81) for each in (others, whitening(others)))
    assert float(after[-1] / after.mean()) < 0.5 * float(before[-1] / before.mean())


def test_dead_leaves_are_discs_of_any_colours_and_the_same_in_every_call():
    leaves = dead_leaves(300, height=16, width=24, colours=2)
    assert leaves.shape == (300, 2, 16, 24)
    assert 0 <= float(leaves.min()) < 0.05 < 0.95 < float(leaves.max()) <= 1
    assert float(leaves.mean()) == pytest.approx(0.5, abs=0.03)
    beside = torch.stack([leaves[..., 1:].flatten(), leaves[..., :-1].flatten()])
    assert 0.6 < float(torch.corrcoef(beside)[0, 1]) < 0.99
    assert torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2))
    assert not torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2, seed=1))


@pytest.mark.parametrize(
    ("rows", "channels", "match"),
    [
        (torch.ones(5, 6), 4, "channels"),
        (torch.ones(5, 6), 3, "not all the same"),
        (torch.full((5, 6), torch.nan), 3, "finite"),
        (torch.rand(1, 6), 3, "two pictures"),
        (torch.rand(5, 3, 2), 3, "shape"),
        (torch.ones(5, 6, dtype=torch.int64), 3, "floating"),
    ],
)
def test_refuses_rows_that_tell_no_covariance(rows, channels, match):
    with pytest.raises(ValueError, match=match):
        ChannelWhitening.fit(rows, channels=channels)


def test_refuses_rows_of_other_channels():
    with pytest.raises(ValueError, match="channels"):
        ChannelWhitening.fit(drawn(), channels=3)(torch.ones(2, 7))
