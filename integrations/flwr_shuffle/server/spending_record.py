"""What a run's rounds cost: an accountant, and a ledger on disk beside it where there is one."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    FederatedSpending,
)
from shuffle_plugins.ledger.budget import BudgetLedger, Checkpoint


class Books:
    """Every round is written down as it can cost at most before it is sent, and as it did before its release.

    A round that was begun and neither received nor refused stays charged as the dearest it can have been.

    Args:
        accountant: where the rounds of this process are added up; with a ledger it takes over the ledger's.
        ledger: what survives this process; None keeps the books in memory alone.

    Raises:
        ValueError: if both know rounds: they could be the same.
    """

    def __init__(self, accountant: FederatedAccountant, *, ledger: BudgetLedger | None) -> None:
        if ledger is not None and accountant.num_rounds:
            raise ValueError(
                "the accountant knows rounds already, and so may the ledger: with a ledger give a fresh "
                "accountant, or none"
            )
        self._accountant = accountant
        self._ledger = ledger
        self._open: tuple[bytes, FederatedRound] | None = None
        self._era = ""
        self.reload()

    @property
    def accountant(self) -> FederatedAccountant:
        """The rounds so far, without the one under way."""
        return self._accountant

    @property
    def where(self) -> str:
        """What keeps the books, for people."""
        if self._ledger is None:
            return "in memory only, forgotten after this run"
        return f"{self._ledger.path}, model {self._ledger.model!r}"

    def claim(self, *, app: str, layout: str) -> None:
        """Go on with the ledger's budget only if it is of this app and of a model with these arrays.

        Raises:
            LedgerError: if it is not.
        """
        if self._ledger is not None:
            self._ledger.claim(app=app, layout=layout)

    @property
    def durable(self) -> bool:
        """Whether the books outlive this process."""
        return self._ledger is not None

    def reload(self) -> None:
        """Take over what the ledger knows by now, other processes' rounds included; a run begins.

        Node ids are of one run, so participants of earlier ones are not recognised.
        """
        self.settle()
        if self._ledger is not None:
            found = self._ledger.accountant(method=self._accountant.method)
            self._accountant.load_state_dict(found.state_dict())
        self.rename()

    def rename(self) -> None:
        """From here on participants go by new names: each may be any of those that took part before."""
        self._accountant.rename()
        self._era = secrets.token_hex(8)

    def last_checkpoint(self) -> Checkpoint | None:
        """What the ledger saved with its last completed round."""
        return None if self._ledger is None else self._ledger.last_checkpoint()

    def would_exceed(
        self, federated_round: FederatedRound, *, max_epsilon: float, delta: float, adversary: Adversary
    ) -> bool:
        """Whether one more such round would cost more than ``max_epsilon``."""
        return self._accountant.would_exceed(
            federated_round, max_epsilon=max_epsilon, delta=delta, adversary=adversary
        )

    def spent(self, delta: float, *, adversary: Adversary) -> float:
        """The certified ε of the rounds so far, quickly."""
        return self._accountant.spent(delta, adversary=adversary)

    def spending(self, delta: float) -> FederatedSpending:
        """What the rounds so far cost, lower bounds included."""
        return self._accountant.spending(delta)

    def settle(self) -> None:
        """Charge a round that was begun and never came to its end; done before another begins."""
        if self._open is not None:
            _, worst = self._open
            self._open = None
            self._accountant.step(worst, participants=None)

    def begin(self, token: bytes, *, run: str, server_round: int, worst: FederatedRound) -> None:
        """Write down a round before anything is sent."""
        self.settle()
        if self._ledger is not None:
            self._ledger.begin(token=token, run=run, server_round=server_round, worst=worst)
        self._open = (token, worst)

    def receive(self, *, actual: FederatedRound, participants: Iterable[str]) -> None:
        """Write down what the round cost, before anything computed from its reports is released."""
        names = list(participants)
        if self._ledger is not None:
            self._ledger.receive(self._token(), actual=actual, participants=names, era=self._era)
        self._accountant.step(actual, participants=names)
        self._open = None

    def refuse(self, *, actual: FederatedRound | None, participants: Iterable[str] | None) -> None:
        """Write down a round that was thrown away; ``actual`` is None if nobody saw its reports shuffled."""
        names = None if actual is None or participants is None else list(participants)
        if self._ledger is not None:
            self._ledger.refuse(self._token(), actual=actual, participants=names, era=self._era)
        if actual is not None:
            self._accountant.step(actual, participants=names, released=False)
        self._open = None

    def complete(self, token: bytes, *, checkpoint: bytes | None) -> None:
        """Save what the round released, and that it is done."""
        if self._ledger is not None:
            self._ledger.complete(token, checkpoint=checkpoint)

    def _token(self) -> bytes:
        if self._open is None:
            raise RuntimeError("no round is under way")
        return self._open[0]
