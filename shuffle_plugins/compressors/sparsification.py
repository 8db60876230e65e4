"""Few entries of a vector instead of all, and the memory of what was left out.

**Where privacy allows what.** An ε0-LDP mechanism protects whatever it is fed, so a client may feed it any
function of its own data, sparsified and corrected by its own memory, brought into the mechanism's ball again;
every report costs ε0, and the rounds compose as always. The limits:

- The indices of :func:`top_k` are a function of the data: they must not leave the client in the clear. Make
  the vector dense again and randomise that. The indices of :func:`random_k` carry no data and may be sent.
- A memory belongs to one client and stays there. It may depend on the client's data and on what was
  published, never on what only the client's own shuffled reports hold: the next report would then tell which
  of the last was whose, and shuffled rounds would no longer compose. :func:`with_error_feedback` remembers
  what the compressor left out before anything is randomised, so top-k keeps to this. Random-k does only
  while its indices stay on the client too, or are public anyway.
- A memory carries data from round to round: once a client has been in, its later reports depend on that
  data, so accounting is for the client, over all rounds it takes part in.
- A memory of the server, made from published sums, is post-processing and free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.compressors.sampling import block_length, stratified_indices
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SparseRows:
    """A few entries of each row; entries at one index add up, and indices from ``dim`` on stand for nothing.

    Attributes:
        indices: int64 (clients, count).
        values: (clients, count).
        dim: length of a row.
    """

    indices: Tensor
    values: Tensor
    dim: int

    def dense(self) -> Tensor:
        """The rows with zeros elsewhere, (clients, dim)."""
        inside = self.indices < self.dim
        rows = torch.zeros(
            (self.indices.shape[0], self.dim), dtype=self.values.dtype, device=self.values.device
        )
        places = torch.where(inside, self.indices, 0)
        return rows.scatter_add_(1, places, torch.where(inside, self.values, 0))


def top_k(x: Tensor, count: int) -> SparseRows:
    """The entries of largest absolute value of each row. Their indices are private: see this module's text.

    What is left out has at most 1 - count/dim of a row's squared norm.

    Args:
        x: (clients, dim), floating point.
        count: entries kept per row, in [1, dim].

    Raises:
        ValueError: if x is no floating (clients, dim) batch, or count is out of range.
    """
    dim = _check_batch(x)
    block_length(dim, count)
    indices = x.abs().topk(count, dim=1, sorted=False).indices
    return SparseRows(indices=indices, values=x.gather(1, indices), dim=dim)


def random_k(x: Tensor, count: int, *, randomness: Randomness, scaled: bool = True) -> SparseRows:
    r"""One random entry out of each of ``count`` blocks of b = ceil(dim/count) coordinates.

    Scaled by b it is unbiased, with :math:`E‖\hat x - x‖_2^2 = (b - 1)‖x‖_2^2`. Unscaled it is what error
    feedback needs: it leaves out (1 - 1/b)‖x‖₂² on average.

    Args:
        x: (clients, dim), floating point.
        count: entries per row, in [1, dim].
        randomness: source of the indices, one word or so for each.
        scaled: multiply by b.

    Raises:
        ValueError: if x is no floating (clients, dim) batch, or count is out of range.
    """
    dim = _check_batch(x)
    block = block_length(dim, count)
    indices = stratified_indices(dim, count, x.shape[0], randomness=randomness, device=x.device)
    values = x.gather(1, indices.clamp(max=dim - 1)) * (indices < dim)
    return SparseRows(indices=indices, values=values * block if scaled else values, dim=dim)


def with_error_feedback(
    x: Tensor, memory: Tensor, compress: Callable[[Tensor], SparseRows], *, decay: float = 1.0
) -> tuple[SparseRows, Tensor]:
    """Compress x + decay · memory, and remember what that left out.

    With a compressor that leaves out a fixed share of the squared norm (:func:`top_k`, unscaled
    :func:`random_k`), the memory stays bounded for bounded rows, and over many rounds what was sent adds up
    to what was there (Stich, Cordonnier, Jaggi 2018; Karimireddy et al. 2019). A scaled compressor leaves out
    more than there was, and the memory explodes.

    Args:
        x: (clients, dim), floating point.
        memory: (clients, dim), of the same clients in the same order; zeros at first. Stays on the client.
        compress: from a batch to a few entries of each row.
        decay: share of the memory that is carried on, in [0, 1].

    Returns:
        What was compressed, and the next memory.

    Raises:
        ValueError: if shapes differ or decay is out of range.
    """
    _check_batch(x)
    if memory.shape != x.shape:
        raise ValueError(f"a memory has the shape of the batch {tuple(x.shape)}, got {tuple(memory.shape)}")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must be in [0, 1], got {decay!r}")
    corrected = x + decay * memory
    kept = compress(corrected)
    return kept, corrected.sub_(kept.dense())


def _check_batch(x: Tensor) -> int:
    if x.dim() != 2 or not x.is_floating_point() or x.shape[1] == 0:
        raise ValueError(f"a batch is floating point (clients, dim), got {x.dtype} {tuple(x.shape)}")
    return x.shape[1]
