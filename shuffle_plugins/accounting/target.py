"""What a calibration may spend: a target (ε, δ) for a number of rounds."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Method, check_method
from shuffle_plugins.core import Delta, Ranged, Steps, TargetEpsilon


@dataclass(frozen=True, kw_only=True)
class PrivacyTarget(Ranged):
    """A goal of calibration: ``num_steps`` rounds together may cost at most ``epsilon`` at ``delta``.

    Attributes:
        epsilon: central ε in nats, positive and finite, for the neighbouring relation replace-one.
        delta: δ in (0, 1).
        num_steps: how many rounds of one kind are run, in [1, 10**12].
        method: how rounds compose: ``"pld"`` (tightest) or ``"rdp"``.

    Raises:
        ValueError: if a field is out of range.

    Example:
        >>> target = PrivacyTarget(epsilon=1.0, delta=1e-6, num_steps=100)
        >>> target.allows(ShuffleRound(local_epsilon=1.0, population=60_000, cohort=1_000))
        True
    """

    epsilon: TargetEpsilon
    delta: Delta
    num_steps: Steps = 1
    method: Method = "pld"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method(self.method)

    def cost(self, each: Round) -> float:
        """The certified ε at ``delta`` of ``num_steps`` such rounds; infinite if none can be certified."""
        accountant = ShuffleAccountant(method=self.method)
        accountant.step(each, num_steps=self.num_steps)
        return accountant.epsilon(self.delta, lower=False).upper

    def allows(self, each: Round) -> bool:
        """Whether ``num_steps`` such rounds stay within the target."""
        return self.cost(each) <= self.epsilon
