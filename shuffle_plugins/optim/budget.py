"""What an optimiser has spent: one accountant for every group of clients, groups being disjoint."""

from __future__ import annotations

from shuffle_plugins.accounting.accountant import EpsilonInterval, ShuffleAccountant
from shuffle_plugins.accounting.rounds.laws import Round


class BudgetExceeded(RuntimeError):
    """A step would have cost more than the budget; it was not taken."""


class Spending:
    """Costs of groups that no client belongs to two of.

    Given what was released before, a client's data enter the rounds of its own group alone; later groups
    compute on what that group released and on other clients' data. So the transcript of all groups costs what
    the dearest group costs.

    Args:
        groups: how many.
        before: what every client has already taken part in; copied.
    """

    def __init__(self, groups: int = 1, *, before: ShuffleAccountant | None = None) -> None:
        if type(groups) is not int or groups < 1:
            raise ValueError(f"groups must be a whole number, at least 1, got {groups!r}")
        self._accountants = tuple(
            ShuffleAccountant(method=before.method if before else "pld") for _ in range(groups)
        )
        for accountant in self._accountants if before else ():
            accountant.load_state_dict(before.state_dict())  # type: ignore[union-attr]

    @property
    def accountants(self) -> tuple[ShuffleAccountant, ...]:
        """One for every group, in order."""
        return self._accountants

    def charge(self, group: int, recorded: Round, *, epsilon: float, delta: float) -> None:
        """Record a round of a group, before anything of it is released.

        Raises:
            BudgetExceeded: if it would take the group over ε at δ; then nothing is recorded.
        """
        accountant = self._accountants[group]
        if accountant.would_exceed(recorded, target_epsilon=epsilon, delta=delta):
            raise BudgetExceeded(
                f"the next round would take clients over ε={epsilon:g} at δ={delta:g}; they have spent "
                f"{accountant.spent(delta):.4g}. Nothing of it was released"
            )
        accountant.step(recorded)

    def epsilon(self, delta: float) -> EpsilonInterval:
        """What the dearest group has cost at δ.

        Raises:
            ValueError: as :meth:`ShuffleAccountant.epsilon`.
        """
        return max((a.epsilon(delta) for a in self._accountants), key=lambda found: found.upper)

    def spent(self, delta: float) -> float:
        """Certified ε of the dearest group."""
        return max(a.spent(delta) for a in self._accountants)
