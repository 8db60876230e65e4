"""What a run's rounds cost, and whether its budget allows another; with a ledger on disk, or in memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.serverapp.exception import PrivacyBudgetExhausted

from flwr_shuffle.server.settings import Settings
from shuffle_plugins.accounting import Adversary, BudgetExceeded, FederatedAccountant, FederatedRound
from shuffle_plugins.core import rounded
from shuffle_plugins.ledger.budget import BudgetLedger, Checkpoint


class BudgetExhausted(BudgetExceeded, PrivacyBudgetExhausted):
    """The next round could spend more than the budget; no client was asked for anything."""


class SpendingRecord:
    """Records each round at its highest possible cost before it is sent, at its own cost before its release.

    A round that was begun and neither received nor refused stays charged at its highest possible cost. Rounds
    are kept in a ledger, which outlives this process, or in an accountant alone.
    """

    def __init__(self, kept: BudgetLedger | FederatedAccountant, *, settings: Settings) -> None:
        self._ledger = kept if isinstance(kept, BudgetLedger) else None
        self._accountant = kept.accountant() if isinstance(kept, BudgetLedger) else kept
        self._settings = settings
        self._open: tuple[bytes, FederatedRound] | None = None
        self._era = ""
        self.reload()

    @property
    def accountant(self) -> FederatedAccountant:
        """The rounds so far, without the one under way."""
        return self._accountant

    def charged(self) -> FederatedAccountant:
        """The accountant; while a round is under way a copy that has it, too, at its highest cost."""
        if self._open is None:
            return self._accountant
        accountant = FederatedAccountant(method=self._accountant.method)
        accountant.load_state_dict(self._accountant.state_dict())
        accountant.step(self._open[1], participants=None)
        return accountant

    @property
    def under_way(self) -> bool:
        """Whether a round was begun and neither received nor refused."""
        return self._open is not None

    @property
    def where(self) -> str:
        """Where the rounds are recorded, as text for people."""
        if self._ledger is None:
            return "in memory only, forgotten after this run"
        return f"{self._ledger.path}, model {self._ledger.model!r}"

    @property
    def kept(self) -> str:
        """As :attr:`where`, without the path."""
        return (
            "in memory only" if self._ledger is None else f"in a ledger as the model {self._ledger.model!r}"
        )

    @property
    def durable(self) -> bool:
        """Whether the record outlives this process."""
        return self._ledger is not None

    def claim(self, *, app: str, layout: str) -> None:
        """Go on with the ledger's budget only if it is of this app and of a model with these arrays."""
        if self._ledger is not None:
            self._ledger.claim(app=app, layout=layout)

    def reload(self) -> None:
        """Take over what the ledger knows by now, other processes' rounds included; a run begins.

        Node ids are of one run, so participants of earlier ones are not recognised.
        """
        self.settle()
        if self._ledger is not None:
            self._accountant.load_state_dict(self._ledger.accountant().state_dict())
        self.rename()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the rounds of a saved state of the accountant.

        Raises:
            ValueError: if it is none, the run has a ledger, or the state lacks a round that is recorded here:
                what was spent would be forgotten.
        """
        if self._ledger is not None:
            raise ValueError("the ledger records the rounds of this run; there is nothing to restore")
        restored, known = FederatedAccountant(method=self._accountant.method), self.charged().history
        restored.load_state_dict(state)
        if restored.history[: len(known)] != known:
            raise ValueError(
                f"the state is older than this strategy: of the {len(known)} rounds recorded here it lacks "
                "some, which would cost nothing any more. Load it into a new strategy, or a state saved later"
            )
        self._open = None
        self._accountant.load_state_dict(state)
        self.rename()

    def rename(self) -> None:
        """From here on participants have new names: each may be any of those that took part before."""
        self._accountant.rename()
        self._era = secrets.token_hex(8)

    def last_checkpoint(self) -> Checkpoint | None:
        """What the ledger saved with its last completed round."""
        return None if self._ledger is None else self._ledger.last_checkpoint()

    def check_budget(self, federated_round: FederatedRound) -> None:
        """Raise BudgetExhausted if ε after one more such round could be more than a budget."""
        settings = self._settings
        if settings.max_epsilon is not None and self._accountant.would_exceed(
            federated_round,
            max_epsilon=settings.max_epsilon,
            delta=settings.delta,
            adversary=settings.adversary,
        ):
            raise BudgetExhausted(
                f"another round could take ε against {settings.adversary} over {settings.max_epsilon:g} at "
                f"δ = {settings.delta:g}; after {self._accountant.num_rounds} rounds: {self}"
            )

    def spent(self, adversary: Adversary) -> float:
        """The certified ε of the rounds so far, at the run's δ."""
        return self._accountant.epsilon(self._settings.delta, adversary=adversary, lower=False).upper

    def __str__(self) -> str:
        observer, server = (
            rounded(self.spent(adversary), up=True)
            for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER)
        )
        return f"ε ≤ {observer} against an observer, ≤ {server} against the server"

    def settle(self) -> None:
        """Charge a round that was begun and never received or refused; done before another begins."""
        if self._open is not None:
            _, worst = self._open
            self._open = None
            self._accountant.step(worst, participants=None)

    def begin(self, token: bytes, *, run: str, server_round: int, worst: FederatedRound) -> None:
        """Record a round at its highest possible cost, before anything is sent."""
        self.settle()
        if self._ledger is not None:
            self._ledger.begin(token=token, run=run, server_round=server_round, worst=worst)
        self._open = (token, worst)

    def receive(self, *, actual: FederatedRound, participants: Iterable[str]) -> None:
        """Record what the round under way cost, before anything computed from its reports is released."""
        names = list(participants)
        if self._ledger is not None:
            self._ledger.receive(self._token(), actual=actual, participants=names, era=self._era)
        self._accountant.step(actual, participants=names)
        self._open = None

    def refuse(self, *, actual: FederatedRound | None, participants: Iterable[str] | None) -> None:
        """Record that nothing of the round is released, and what it cost if reports were seen all the
        same.
        """
        names = None if actual is None or participants is None else list(participants)
        if self._ledger is not None:
            self._ledger.refuse(self._token(), actual=actual, participants=names, era=self._era)
        if actual is not None:
            self._accountant.step(actual, participants=names, released=False)
        self._open = None

    def complete(self, token: bytes, *, checkpoint: bytes | None) -> None:
        """Save what a round released, and that it is done."""
        if self._ledger is not None:
            self._ledger.complete(token, checkpoint=checkpoint)

    def _token(self) -> bytes:
        if self._open is None:
            raise RuntimeError("no round is under way")
        return self._open[0]
