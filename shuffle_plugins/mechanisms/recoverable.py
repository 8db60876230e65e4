r"""Private recoverability: a published report hides a category, and who has its key reads it exactly.

Girgis's thesis, section 7.5: Alice publishes Y = (X + U) mod K. Bob, who has the key U, takes X = Y - U; Eve,
who has not, learns X at most at ε0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Dim, LocalEpsilon, Ranged, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.mechanisms.oracles import Mixture
from shuffle_plugins.randomness.sources import Randomness, secure


@dataclass(frozen=True, kw_only=True)
class KeyLaw(Ranged):
    """A key of ``size`` values N ≥ 2, ``heavy`` s < N of which have odds e^ε0 over the others."""

    local_epsilon: LocalEpsilon
    size: Annotated[int, whole_number(at_least=2, at_most=checks.MAX_DIM)]
    heavy: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("heavy", self.heavy, at_most=self.size - 1)

    @classmethod
    def shortest(cls, *, local_epsilon: float, categories: int) -> KeyLaw:
        r"""The key of least entropy that hides one of K categories and lets it be recovered (Theorem 7.5.1).

        N = K, and s is a whole number next to :math:`K\,(e^{ε_0}(ε_0 - 1) + 1)/(e^{ε_0} - 1)^2`.
        """
        checks.local_epsilon(local_epsilon)
        checks.categories(categories)
        best = categories * _best_share(local_epsilon)
        around = {min(max(s, 1), categories - 1) for s in (math.floor(best), math.ceil(best))}
        laws = [cls(local_epsilon=local_epsilon, size=categories, heavy=s) for s in sorted(around)]
        return min(laws, key=lambda law: law.entropy_bits)

    @classmethod
    def of_hadamard_response(cls, *, local_epsilon: float, categories: int) -> KeyLaw:
        """The key of Hadamard response in blocks (Acharya, Sun, Zhang 2019), which is recoverable too.

        Theorem 7.5.2: B = 2^(ceil(log2 min(e^ε0, 2K)) - 1) blocks of b = 2^ceil(log2(K/B + 1)) columns, N =
        B·b and s = b/2.
        """
        checks.local_epsilon(local_epsilon)
        checks.categories(categories)
        blocks = 1 << (math.ceil(min(local_epsilon / math.log(2), math.log2(2 * categories))) - 1)
        columns = 1 << (-(-categories // blocks)).bit_length()
        return cls(local_epsilon=local_epsilon, size=blocks * columns, heavy=columns // 2)

    @property
    def entropy_bits(self) -> float:
        """H(U) = log t - s·ε0·e^ε0/t, in bits."""
        rest = (self.size - self.heavy) * math.exp(-self.local_epsilon)
        total = self.heavy + rest  # t·e^-ε0
        return (math.log(total) + self.local_epsilon * rest / total) / math.log(2)

    @property
    def saving(self) -> float:
        """1 - H(U)/log2 N: what storing the key saves beside storing a category of N."""
        return 1 - self.entropy_bits / math.log2(self.size)


@dataclass(frozen=True, kw_only=True)
class RecoverableResponse(Ranged):
    """An ε0-LDP report of a category that its key turns back into the category (Theorem 7.5.1, Lemma 7.5.1).

    Y = (X + U) mod K with a key of the least entropy, whose s heavy values are 0, …, s - 1, rounded so that
    ε0 is never exceeded. **A key hides one category, once**: (X1 + U) - (X2 + U) shows the difference of two.
    See :func:`key_reuse_entropy`. ``dim`` is K, the number of categories, at least 2.
    """

    local_epsilon: LocalEpsilon
    dim: Dim

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mixture  # noqa: B018  (refuses what it cannot be)

    @cached_property
    def key_law(self) -> KeyLaw:
        """Size, heavy values and entropy of a key."""
        return KeyLaw.shortest(local_epsilon=self.local_epsilon, categories=self.dim)

    @cached_property
    def _mixture(self) -> Mixture:
        return Mixture.of(self.local_epsilon, share=Fraction(self.key_law.heavy, self.dim))

    def key_log_likelihood(self, keys: Tensor) -> Tensor:
        """Log-probability of each key as it is rounded: of the report y of x, that of (y - x) mod K."""
        heavy = self._numbers(keys) < self.key_law.heavy
        uniform = math.log(self._mixture.noise) - math.log(self.dim)
        return heavy.double().mul_(math.log1p(float(self._mixture.odds - 1))).add_(uniform)

    def draw_keys(
        self, clients: int, *, randomness: Randomness | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Fresh keys, int64 (clients,) in [0, dim), for as many categories."""
        randomness = secure(randomness)
        heavy = self._mixture.truthful(clients, randomness, device)
        likely = randomness.integers(self.key_law.heavy, clients, device=device)
        return torch.where(heavy, likely, randomness.integers(self.dim, clients, device=device))

    def hide(self, x: Tensor, keys: Tensor) -> Tensor:
        """(x + key) mod dim, int64 (clients,): what may be published. No key may ever be used again."""
        return (self._numbers(x) + self._matching(keys, x)) % self.dim

    def recover(self, published: Tensor, keys: Tensor) -> Tensor:
        """(published - key) mod dim, int64 (clients,): the categories themselves."""
        return (self._numbers(published) - self._matching(keys, published)) % self.dim

    def _numbers(self, values: Tensor) -> Tensor:
        return checked_categories(values, categories=self.dim)

    def _matching(self, keys: Tensor, x: Tensor) -> Tensor:
        found = self._numbers(keys)
        if len(found) != len(x):
            raise ValueError(f"each of {len(x)} categories takes a key of its own, got {len(found)} keys")
        return found


def key_reuse_entropy(*, local_epsilon: float, categories: int, samples: int) -> float:
    """Least entropy, in bits, of a key that hides T samples at ε0 each: T times one's (Theorem 7.6.1)."""
    one = KeyLaw.shortest(local_epsilon=local_epsilon, categories=categories).entropy_bits
    return checks.whole("samples", samples) * one


def _best_share(local_epsilon: float) -> float:
    """(e^ε(ε - 1) + 1)/(e^ε - 1)², which falls from 1/2; by its series where the fraction loses digits."""
    if local_epsilon < 1e-4:
        return 0.5 - local_epsilon / 6
    decay = math.exp(-local_epsilon)
    return decay * (local_epsilon - 1 + decay) / math.expm1(-local_epsilon) ** 2
