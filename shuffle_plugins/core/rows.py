"""What a batch of clients holds: vectors, one client a row, in the blocks they came in; or categories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shuffle_plugins.core.lazy_torch import Tensor, torch


def rows_at_once(width: int, *, device: torch.device, entries: int = 1 << 18) -> int:
    """How many rows of this width to work on together: few enough for a CPU's cache, or to fill a GPU."""
    return max(1, (entries if device.type == "cpu" else 1 << 24) // max(1, width))


def spans(
    count: int, *, width: int, device: torch.device, entries: int = 1 << 18
) -> Iterator[tuple[int, int]]:
    """Where runs of :func:`rows_at_once` rows begin and end, of ``count`` in all."""
    step = rows_at_once(width, device=device, entries=entries)
    return ((start, min(start + step, count)) for start in range(0, count, step))


class Rows:
    """A (clients, dim) matrix held as column blocks (clients, dim_i), detached and never concatenated.

    A host's per-sample gradients come as one tensor per parameter; a copy of all of them costs more than the
    host's own optimiser step. Blocks are dense, floating point of 16, 32 or 64 bits, and alike.
    """

    def __init__(self, blocks: Tensor | Sequence[Tensor]) -> None:
        given = tuple(blocks) if isinstance(blocks, Sequence) else (blocks,)
        for block in given:
            if not isinstance(block, Tensor):
                raise TypeError(
                    f"a batch is made of torch tensors, got {type(block).__name__}: convert it first"
                )
        self.blocks: tuple[Tensor, ...] = tuple(block.detach() for block in given)
        for block in self.blocks:
            if block.dim() != 2:
                raise ValueError(
                    f"a batch is (clients, dim), got shape {tuple(block.shape)}: flatten each client's vector"
                )
            if block.layout != torch.strided:
                raise ValueError(f"a batch must be dense, got {block.layout}: convert it first")
            if block.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                raise ValueError(
                    f"a batch must be floating point of 16, 32 or 64 bits, got {block.dtype}: convert it"
                )
        kinds = {(block.shape[0], block.dtype, block.device) for block in self.blocks}
        if len(kinds) != 1:
            raise ValueError(
                f"the blocks of a batch are alike in rows, dtype and device, got {kinds or 'none'}"
            )
        self.num_rows: int
        self.dtype: torch.dtype
        self.device: torch.device
        [(self.num_rows, self.dtype, self.device)] = kinds
        self.dim: int = sum(block.shape[1] for block in self.blocks)

    @classmethod
    def of(cls, x: Tensor | Rows) -> Rows:
        """``x`` itself, or a tensor as one block."""
        return x if isinstance(x, Rows) else cls(x)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which sums over columns are taken: float64 for float64, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def narrow(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` (not included), as views of the same blocks."""
        return Rows([block[start:stop] for block in self.blocks])

    def directions(self, norms: Tensor) -> Rows:
        """Each row over its norm, float64; rows of norm zero stay."""
        scale = torch.where(norms > 0, norms, 1.0).double().unsqueeze(1)
        return Rows([block.double() / scale for block in self.blocks])

    def l1_norm(self) -> Tensor:
        """Sum of absolute entries of each row, (clients,); NaN and inf pass through."""
        norms = torch.zeros(self.num_rows, dtype=self.compute_dtype, device=self.device)
        for block in self.blocks:
            for start, stop in spans(self.num_rows, width=block.shape[1], device=self.device):
                norms[start:stop].add_(block[start:stop].abs().sum(dim=1, dtype=self.compute_dtype))
        return norms

    def l2_norm(self) -> Tensor:
        """Euclidean norm of each row, (clients,), exact to rounding for every finite row.

        A row whose squares overflow or underflow is measured again after scaling; NaN and inf pass through.
        """
        norms = torch.zeros(self.num_rows, dtype=self.compute_dtype, device=self.device)
        for block in self.blocks:
            norms.add_(torch.linalg.vector_norm(block, dim=1, dtype=self.compute_dtype).square_())
        norms.sqrt_()
        limits = torch.finfo(self.compute_dtype)
        suspect = ~((norms > limits.tiny**0.5 / limits.eps) & norms.isfinite())
        if bool(suspect.any()):
            chosen = Rows([block[suspect].to(self.compute_dtype) for block in self.blocks])
            scale = chosen.linf_norm()
            safe = torch.where((scale > 0) & scale.isfinite(), scale, torch.ones_like(scale))
            total = torch.zeros_like(safe)
            for block in chosen.blocks:
                total.add_(torch.linalg.vector_norm(block / safe.unsqueeze(1), dim=1).square_())
            norms[suspect] = total.sqrt_().mul_(safe)
        return norms

    def linf_norm(self) -> Tensor:
        """Largest absolute entry of each row, (clients,); NaN and inf pass through."""
        norms = torch.zeros(self.num_rows, dtype=self.dtype, device=self.device)
        for block in self.blocks:
            if block.numel() == 0:
                continue
            largest = torch.maximum(block.amax(dim=1), block.amin(dim=1).neg_())
            torch.maximum(norms, largest, out=norms)
        return norms.to(self.compute_dtype)

    def gather(self, columns: Tensor) -> Tensor:
        """Entries of each row at columns of its own, of the shape (clients, ...) of ``columns``."""
        flat = columns.unsqueeze(-1).flatten(1)
        if len(self.blocks) == 1:
            return self.blocks[0].gather(1, flat).view(columns.shape)
        values = torch.empty(flat.shape, dtype=self.dtype, device=self.device)
        start = 0
        for block in self.blocks:
            stop = start + block.shape[1]
            row, place = ((flat >= start) & (flat < stop)).nonzero(as_tuple=True)
            values[row, place] = block[row, flat[row, place] - start]
            start = stop
        return values.view(columns.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum of weights[i] · row i, (dim,), without a weighted copy of the batch."""
        weights = weights.to(self.compute_dtype)
        return torch.cat([block.to(self.compute_dtype).T.mv(weights) for block in self.blocks])

    def dot(self, vector: Tensor) -> Tensor:
        """Inner product of each row with one vector of length dim, (clients,)."""
        total = torch.zeros(self.num_rows, dtype=self.compute_dtype, device=self.device)
        parts = torch.split(vector, [block.shape[1] for block in self.blocks])
        for block, part in zip(self.blocks, parts, strict=True):
            total.addmv_(block.to(self.compute_dtype), part)
        return total

    def gram(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Inner products between all rows, (clients, clients), taken in ``dtype``."""
        dtype = dtype or self.compute_dtype
        total = torch.zeros(self.num_rows, self.num_rows, dtype=dtype, device=self.device)
        for block in self.blocks:
            part = block.to(dtype)
            total += part @ part.T
        return total

    def dense(self) -> Tensor:
        """All columns in one tensor: a copy unless there is one block."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks, dim=1)

    def finite(self, norms: Tensor) -> tuple[Rows, Tensor]:
        """The rows and their norms, (clients,), with zeros in place of each row whose norm is not finite.

        A refusal, or a round without such rows, would tell neighbouring data sets apart.
        """
        bad = ~norms.isfinite()
        if not bool(bad.any()):
            return self, norms
        kept = [block.masked_fill(bad.unsqueeze(1), 0) for block in self.blocks]
        return Rows(kept), norms.masked_fill(bad, 0)

    def is_finite(self) -> bool:
        """Whether no entry is NaN or infinite."""
        return bool(self.linf_norm().isfinite().all())


def adapted_norm(norm: float, *, share: float, quantile: float, learning_rate: float) -> float:
    """The next clipping norm, norm·exp(-learning_rate·(share - quantile)), of one that follows the clients.

    ``share`` is a noisy estimate of who is within it (Andrew, Thakkar, McMahan, Ramaswamy 2021,
    "Differentially Private Learning with Adaptive Clipping", Algorithm 1).
    """
    move = -learning_rate * (share - quantile)
    return norm * math.exp(min(max(move, -700.0), 700.0))  # e^±700 are floats still


def checked_categories(x: object, *, categories: int, least: int = 0) -> Tensor:
    """Return each client's category, of a tensor of integers (clients,) from ``least`` on, as int64."""
    if not isinstance(x, Tensor):
        raise TypeError(f"categories come as a torch tensor, got {type(x).__name__}: convert it first")
    if x.dim() != 1 or x.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise ValueError(
            f"categories are a vector of integers, (clients,), got {x.dtype} of shape {tuple(x.shape)}"
        )
    x = x.to(torch.int64)
    if x.numel() and not (int(x.min()) >= least and int(x.max()) < categories):
        raise ValueError(f"a category lies outside [{least}, {categories}); nothing was released")
    return x
