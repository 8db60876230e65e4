"""One accountant per disjoint group of clients, with a budget check before each round."""

from __future__ import annotations

from shuffle_plugins.accounting import BudgetExceeded, EpsilonInterval, Round, ShuffleAccountant
from shuffle_plugins.core import checks


class Spending:
    """Costs of groups of clients; no client belongs to two of them.

    Given what was released before, a client's data enter only the rounds of its own group. Later groups
    compute on what that group released and on other clients' data. So the transcript of all groups costs as
    much as the group that costs most.

    Args:
        groups: number of groups.
        before: what every client has already taken part in; copied.
    """

    def __init__(self, groups: int = 1, *, before: ShuffleAccountant | None = None) -> None:
        start = ShuffleAccountant() if before is None else before
        self._accountants = tuple(
            ShuffleAccountant(method=start.method) for _ in range(checks.whole("groups", groups))
        )
        for accountant in self._accountants:
            accountant.load_state_dict(start.state_dict())

    @property
    def accountants(self) -> tuple[ShuffleAccountant, ...]:
        """One for every group, in order."""
        return self._accountants

    def charge(self, group: int, new_round: Round, *, target_epsilon: float, delta: float) -> None:
        """Record a round of a group, before anything of it is released.

        Raises:
            BudgetExceeded: if it would take the group over the target ε at δ; then nothing is recorded.
        """
        accountant = self._accountants[group]
        if accountant.would_exceed(new_round, target_epsilon=target_epsilon, delta=delta):
            raise BudgetExceeded(
                f"the next round would take clients over ε={target_epsilon:g} at δ={delta:g}; they have "
                f"spent {accountant.epsilon(delta, lower=False).upper:.4g}. Nothing of it was released"
            )
        accountant.step(new_round)

    def epsilon(self, delta: float) -> EpsilonInterval:
        """ε at δ of the group that costs most.

        Raises:
            ValueError: as :meth:`ShuffleAccountant.epsilon`.
        """
        return max((a.epsilon(delta) for a in self._accountants), key=lambda found: found.upper)
