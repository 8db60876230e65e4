"""A run's rounds, one at a time: draws the cohort, asks the budget, records the cost, adds reports up."""

from __future__ import annotations

import logging
import math
import os
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType
from flwr.proto.node_pb2 import NodeInfo  # Flower has no public address for what Grid.get_nodes returns
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from torch import Tensor

from flwr_shuffle.grids import (
    SIMULATED_HEARTBEAT,
    Anonymous,
    AnonymousReply,
    ShuffleGrid,
    Total,
    Waiting,
    model_of,
    valid_sum,
)
from flwr_shuffle.messages import RECORD_KEY, Instruction, WindowPlace, type_of
from flwr_shuffle.metrics import Metric, PrivateEvaluation
from flwr_shuffle.settings import FixedSize, Invitation, Settings
from flwr_shuffle.updates import (
    Layout,
    UpdateTerms,
    running_statistics,
    trained_names,
)
from shuffle_plugins.accounting import (
    Adversary,
    BudgetExceeded,
    FederatedAccountant,
    FederatedRound,
    PrivacyStatement,
)
from shuffle_plugins.core import rounded
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.planning import expected_noise
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.shuffler.shuffler import TOKEN_BYTES

_log = logging.getLogger("flwr")

_MENTION_EVERY = 10.0  # seconds between two lines about progress
_ENOUGH_ERRORS = 20  # with no participant in between; if each client took part with probability ½: 2**-20


class BudgetExhausted(BudgetExceeded, PrivacyBudgetExhausted):
    """The next round could spend more than the budget; no client was asked for anything."""


class ClientsRefused(RuntimeError):
    """One client after another refused to take part, or failed; the text says why, as far as clients say."""


class TooFewEligible(RuntimeError):
    """Too few clients may take part in the next window; none was asked for anything."""


class Waits:
    """How long each client has waited since it was last invited, in rounds, or in windows of a series.

    Nobody may be invited before ``apart`` windows after its last. Clients that are there when a series
    begins may all be invited. One that joins later may be one that took part and was restarted under another
    name: it waits as if it had been invited in the window before.

    With ``apart`` 3 and two clients a window, of six: A and B are invited to window 0, C and D to 1, E and F
    to 2, A and B again to 3. G, who joins before window 2, counts as invited to 1, and may first be to 4. If
    window 2 is not opened, it is tried again, and E and F may be invited to it once more.
    """

    def __init__(self) -> None:
        self._series = b""
        self._next = 0
        self._last: dict[int, int] = {}  # in which round, or window, each was invited last

    def begin(self, nodes: Iterable[int], *, window: WindowPlace | None, apart: int) -> list[int]:
        """Those who may be invited now, ``apart`` rounds after the last time, the longest waiting first and
        equals in random order. A window that is tried again is open to those it was tried with; a coin says
        whether these come first or last, as they may be gone, or all that are left.
        """
        if window is not None:
            if window.series != self._series:
                # Nobody is in a window of this series yet. All are moved back equally, so that their order
                # stays, and those invited last come out at −apart: at index 0 even they have waited enough.
                latest = max(self._last.values(), default=0)
                self._last = {node: self._last.get(node, latest) - latest - apart for node in nodes}
            self._series, self._next = window.series, window.index
        self._last = dict.fromkeys(nodes, self._next - 1) | self._last  # the unknown: as if in the one before
        passed = {node: self._next - self._last[node] for node in nodes}  # 0: invited to this very window
        able = [node for node, rounds in passed.items() if rounds == 0 or rounds >= apart]
        chance = random.SystemRandom()
        chance.shuffle(able)
        soon = math.inf if chance.random() < 0.5 else 0  # where those of a window that is tried again come
        return sorted(able, key=lambda node: passed[node] or soon, reverse=True)

    def knows(self, window: WindowPlace) -> bool:
        """Whether all that took part in the window's series so far were invited here."""
        return window.index == 0 or window.series == self._series

    def invite(self, nodes: Iterable[int]) -> None:
        """These are invited, whether or not they answer."""
        self._last |= dict.fromkeys(nodes, self._next)
        self._next += not self._series  # rounds without windows count themselves


class SpendingRecord:
    """Records each round at its highest possible cost before it is sent, at its own cost before its release,
    in a ledger, or the path of one, or in an accountant alone, by default a new one. ``under_way`` is a round
    that was begun and not ended.
    """

    def __init__(
        self,
        kept: BudgetLedger | FederatedAccountant | str | os.PathLike[str] | None,
        *,
        settings: Settings,
    ) -> None:
        if kept is None:
            kept = FederatedAccountant()
        elif not isinstance(kept, (BudgetLedger, FederatedAccountant)):
            kept = BudgetLedger(kept)
        self.ledger = kept if isinstance(kept, BudgetLedger) else None
        self.accountant = kept.accountant() if isinstance(kept, BudgetLedger) else kept
        self.under_way: tuple[bytes, FederatedRound] | None = None
        self._settings = settings
        self._era = ""
        self.reload()

    def charged(self) -> FederatedAccountant:
        """The accountant; while a round is under way a copy that has it, too, at its highest cost."""
        if self.under_way is None:
            return self.accountant
        accountant = FederatedAccountant(method=self.accountant.method)
        accountant.load_state_dict(self.accountant.state_dict())
        accountant.step(self.under_way[1], participants=None)
        return accountant

    def reload(self) -> None:
        """Take over what the ledger knows by now; a run begins, whose participants have new names."""
        self.settle()
        if self.ledger is not None:
            self._entered = self.ledger.last_entered()
            self.accountant.load_state_dict(self.ledger.accountant().state_dict())
        self.rename()

    def catch_up(self) -> None:
        """Take over rounds of others that share the ledger, such as queries during a training."""
        self.settle()
        if self.ledger is not None and self.ledger.last_entered() != self._entered:
            self.reload()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the rounds of a saved state of the accountant."""
        if self.ledger is not None:
            raise ValueError("the ledger records the rounds of this run; there is nothing to restore")
        restored, known = FederatedAccountant(method=self.accountant.method), self.charged().history
        restored.load_state_dict(state)
        if restored.history[: len(known)] != known:
            raise ValueError(
                f"the state is older than this strategy: of the {len(known)} rounds recorded here it lacks "
                "some, which would cost nothing any more. Load it into a new strategy, or a state saved later"
            )
        self.under_way = None
        self.accountant.load_state_dict(state)
        self.rename()

    def rename(self) -> None:
        """From here on participants have new names: each may be any of those that took part before."""
        self.accountant.rename()
        self._era = secrets.token_hex(8)
        self._renamed_at = self.accountant.num_rounds

    @property
    def has_names(self) -> bool:
        """Whether there were rounds under the present names, of this run or of one that shares its budget."""
        return self.accountant.num_rounds > self._renamed_at

    def join(self, nodes: Iterable[int]) -> None:
        """These nodes joined the run; each may be one that was restarted."""
        self.accountant.join(map(str, nodes))

    def check_budget(self, federated_round: FederatedRound, *, participants: Iterable[str]) -> None:
        """Raise BudgetExhausted if ε after one more such round, of no others, could be more than a budget."""
        settings = self._settings
        if settings.max_epsilon is not None and self.accountant.would_exceed(
            federated_round,
            max_epsilon=settings.max_epsilon,
            delta=settings.delta,
            adversary=settings.adversary,
            participants=participants,
        ):
            alone = FederatedAccountant(method=self.accountant.method)
            alone.step(federated_round, participants=None)
            cost = alone.epsilon(settings.delta, adversary=settings.adversary, lower=False).upper
            kept = "" if self.ledger is None else f" in {self.ledger.path}"
            raise BudgetExhausted(
                f"another round could take ε against {settings.adversary} over {settings.max_epsilon:g} at "
                f"δ = {settings.delta:g}; after {self.accountant.num_rounds} rounds{kept}: {self}. One such "
                f"round alone costs ε ≤ {rounded(cost, up=True)}: take more noise (a smaller ε0), more "
                "clients for a round, or a larger max_epsilon"
            )

    def spent(self, adversary: Adversary) -> float:
        """The certified ε of the rounds so far, at the run's δ."""
        return self.accountant.epsilon(self._settings.delta, adversary=adversary, lower=False).upper

    def told(self, suffix: str = "") -> dict[str, float]:
        """ε so far, as metrics."""
        return {
            f"epsilon-observer{suffix}": self.spent(Adversary.MODEL_OBSERVER),
            f"epsilon-server{suffix}": self.spent(Adversary.SERVER),
        }

    def statement(self, *, delta: float | None, **said: Any) -> PrivacyStatement:
        """What is said beside the ε of the rounds so far, of a run's own beside what it was asked to be."""
        settings = self._settings
        return PrivacyStatement.of(
            self.charged(),
            delta=settings.delta if delta is None else delta,
            target_epsilon=settings.max_epsilon,
            target_delta=settings.delta,
            target_adversary=settings.adversary,
            packages=("torch", "flwr"),
            **said,
        )

    def __str__(self) -> str:
        observer = rounded(self.spent(Adversary.MODEL_OBSERVER), up=True)
        server = rounded(self.spent(Adversary.SERVER), up=True)
        return f"ε ≤ {observer} against an observer, ≤ {server} against the server"

    def settle(self) -> None:
        """Charge a round that was begun and never ended; done before another begins."""
        if self.under_way is not None:
            _, worst = self.under_way
            self.under_way = None
            self.accountant.step(worst, participants=None)

    def begin(self, token: bytes, *, run: str, server_round: int, worst: FederatedRound) -> None:
        """Record a round at its highest possible cost, before anything is sent."""
        self.settle()
        if self.ledger is not None:
            self._entered = self.ledger.begin(token=token, run=run, server_round=server_round, worst=worst)
        self.under_way = (token, worst)

    def end(
        self, actual: FederatedRound | None, *, participants: Iterable[str] | None, released: bool
    ) -> None:
        """Record what the round under way cost, before its release; None if nobody has seen its reports."""
        if self.under_way is None:
            raise RuntimeError("no round is under way")
        token, _ = self.under_way
        names = None if actual is None or participants is None else list(participants)
        before = None if actual is None or names is None else self.accountant.assumed(names)
        if self.ledger is not None:
            named: dict[str, Any] = {"participants": names, "era": self._era, "before": before}
            if actual is not None and released:
                self.ledger.receive(token, actual=actual, **named)
            else:
                self.ledger.refuse(token, actual=actual, **named)
        if actual is not None:
            self.accountant.step(actual, participants=names, released=released)
        self.under_way = None

    def complete(self, token: bytes, *, checkpoint: bytes | None) -> None:
        """Save what a round released, and that it is done."""
        if self.ledger is not None:
            self.ledger.complete(token, checkpoint=checkpoint)


@dataclass(frozen=True, kw_only=True)
class SentRound:
    """A round that was sent: what clients were told, the model, and whom it was sent to.

    ``worst`` is the highest cost that it can have, ``checked`` the round that the budget was asked about, and
    ``invited`` the names of all that were.
    """

    instruction: Instruction
    arrays: ArrayRecord
    arrays_key: str
    layout: Layout
    invitation: Invitation
    worst: FederatedRound
    checked: FederatedRound
    invited: tuple[str, ...]

    def mean(self, total: Total) -> Tensor:
        """The estimated mean over those who took part, (dim,); to a sum, over as many as are expected to."""
        summed = self.invitation.mechanism.must_be_summed
        return total.sum / (total.reports * (self.instruction.participation if summed else 1.0))

    @property
    def step(self) -> str:
        """What the log calls this round: the Flower method that aggregates it, or a query."""
        if not self.arrays:
            return "query"
        return "aggregate_evaluate" if self.instruction.metrics else "aggregate_train"


class Rounds:
    """The rounds of one run of ``num_rounds``."""

    def __init__(self, settings: Settings, *, record: SpendingRecord, num_rounds: int = 1) -> None:
        self._settings = settings
        self._record = record
        self._planned = max(1, num_rounds)
        self._sent: SentRound | None = None
        self._run, self._connected = "", 0
        self._waiting = Waits()  # of the round that was drawn, as is the window
        self._window: WindowPlace | None = None
        self._seen: frozenset[int] = frozenset()
        self._waits: defaultdict[str, Waits] = defaultdict(Waits)  # by the Flower method that invites
        self._awaited = settings.population
        self._errors: Counter[str] = Counter()
        self._invited: Counter[str] = Counter()  # by step, as are those that answered
        self._answered: Counter[str] = Counter()
        self._statistics: list[str] = []
        self._logged: tuple[int, int] | None = None

    def draw(self, grid: Grid, *, step: str) -> list[int]:
        """The clients to invite; none if fewer were drawn than a release needs."""
        settings = self._settings
        if not isinstance(grid, ShuffleGrid) or grid.stage is not settings.stage:
            raise ValueError(
                "a shuffled round needs a ShuffleGrid with this strategy's stage: call start(), or wrap the "
                "grid yourself"
            )
        self._sent = None
        self._record.catch_up()
        grid.open()
        enough = settings.fewest_reports if self._seen else settings.population
        candidates = connected(grid, needed=self._awaited, enough=enough, waiting=settings.waiting)
        self._awaited = min(self._awaited, len(candidates))  # who is gone is waited for once
        self._note_connected(candidates)
        self._run = str(grid.run.run_id)  # which a window's series is of
        protocol = settings.windowed if step == "configure_train" else None
        self._waiting = self._waits[step]
        self._window = None
        if protocol is not None:
            self._window = self._next_window(protocol, clients=len(candidates))
        apart = 1 if protocol is None else protocol.band
        able = self._waiting.begin(candidates, window=self._window, apart=apart)
        cohort = settings.sampling.draw(able)
        _log.info("%s: invited %d clients of %d", step, len(cohort), len(candidates))
        needed = settings.fewest_reports
        if protocol is not None and len(cohort) < needed:
            raise TooFewEligible(
                f"{len(able)} of {len(candidates)} connected clients may take part in this window, and "
                f"{needed} are needed. Each sits out {protocol.band - 1} windows after its own, as one that "
                f"joins does: keep at least {protocol.band} times as many clients connected as a round "
                f"invites (here {protocol.band * needed}), invite fewer, or build the sum with fewer "
                "coefficients. Started again, the run goes on with a new series, in which all may take part"
            )
        return cohort if self._enough(cohort, of=len(candidates), grid=grid, step=step) else []

    def choose(self, grid: ShuffleGrid, nodes: Sequence[int]) -> bool:
        """Take clients whom the user's own code writes to; ValueError for one twice, or that is no client."""
        self._sent = None
        self._record.catch_up()
        grid.open()
        self._note_connected(grid.clients_of(nodes).union(grid.get_node_ids()))
        self._waiting, self._window = self._waits["query"], None
        able = self._waiting.begin(nodes, window=None, apart=1)
        return self._enough(able, of=len(nodes), grid=grid, step="query")

    def _enough(self, cohort: Sequence[int], *, of: int, grid: Grid, step: str) -> bool:
        needed = self._settings.fewest_reports
        if len(cohort) < needed:
            _log.warning(
                "%s: %d clients drawn, %d needed (%s); left out. Invite more, or lower that minimum",
                step,
                len(cohort),
                needed,
                "minimum of the stage, or shuffle-min-batch of its nodes"
                if needed == self._settings.stage.minimum
                else "minimum_reports, or the clients of the sum",
            )
            return False
        self._run, self._connected = str(grid.run.run_id), of
        return True

    def _next_window(self, protocol: WindowedSum, *, clients: int) -> WindowPlace:
        """The next window, of a new series if others than those invited here may be in this one."""
        stage, sampling = self._settings.stage, self._settings.sampling
        assert isinstance(sampling, FixedSize)
        asked: dict[str, Any] = {"run": self._run, "clients": min(sampling.cohort, clients)}
        window = stage.next_window(protocol, **asked)
        if window is not None and not self._waiting.knows(window):
            stage.series = None
            window = stage.next_window(protocol, **asked)
        assert window is not None
        return window

    def begin(
        self,
        messages: list[Message],
        *,
        server_round: int,
        asked: UpdateTerms | PrivateEvaluation | tuple[Metric, ...],
    ) -> None:
        """Ask the budget (PrivacyBudgetExhausted), put the instruction into messages, record the round."""
        settings, stage, updates = self._settings, self._settings.stage, self._settings.updates
        training = isinstance(asked, UpdateTerms)
        kind = MessageType.TRAIN if training else MessageType.EVALUATE
        if isinstance(asked, tuple):
            kind = MessageType.QUERY
        for message in messages:
            if type_of(message) != kind or RECORD_KEY in message.content:
                raise ValueError(
                    f"the messages of this round must be of type {kind}, without a record "
                    f"{RECORD_KEY!r}, which is the instruction's"
                )
        key, arrays = ("", ArrayRecord()) if isinstance(asked, tuple) else model_of(messages)
        if isinstance(asked, UpdateTerms):
            self._log_statistics(running_statistics(arrays))
            what: dict[str, Any] = {
                "mechanism": settings.mechanism,
                "update": replace(asked, trained=trained_names(arrays, wanted=updates.trained)),
                "records_per_client": updates.records_per_client,
                "samples_per_client": updates.samples_per_client,
            }
        elif isinstance(asked, PrivateEvaluation):
            what = {"mechanism": settings.spec_of(asked), "metrics": asked.asked}
        else:
            what = {"mechanism": settings.mechanism, "metrics": asked}
        instruction = Instruction(
            token=secrets.token_bytes(TOKEN_BYTES),
            run=self._run,
            server_round=server_round,
            participation=settings.sampling.participation,
            analyzer_key=stage.analyzer_key,
            minimum=settings.fewest_reports,
            mixers=stage.mixers,
            **what,
        )
        layout = (
            Layout(()) if isinstance(asked, tuple) else Layout.of(arrays, trained=instruction.update.trained)
        )
        mechanism = instruction.mechanism.build(dim=instruction.report_dim(layout.dim))
        invited = len(messages)
        shared = stage.shared(mechanism, clients=invited)
        instruction = replace(instruction, window=self._window, shared=shared)
        fewest, samples = instruction.minimum, instruction.samples_per_client
        invitation = Invitation(
            mechanism=mechanism,
            candidates=self._connected,
            invited=invited,
            fewest=fewest,
            hides_shares=stage.hides_shares,
            samples=samples,
        )
        worst = settings.sampling.accounted(invitation, answered=fewest, reports=fewest)
        checked = settings.sampling.planned(invitation)
        nodes = [message.metadata.dst_node_id for message in messages]
        names = tuple(map(str, nodes))
        self._record.check_budget(checked, participants=names)
        if training:
            self._log_outlook(mechanism, len(messages) * samples * settings.sampling.participation)
        stage.fewest_answers = self._fewest_answers(invitation)
        record = instruction.to_record()
        for message in messages:
            message.content[RECORD_KEY] = record
        self._waiting.invite(nodes)
        self._record.begin(instruction.token, run=instruction.run, server_round=server_round, worst=worst)
        self._sent = SentRound(
            instruction=instruction,
            arrays=arrays,
            arrays_key=key,
            layout=layout,
            invitation=invitation,
            worst=worst,
            checked=checked,
            invited=names,
        )

    def awaits(self, reply: Message) -> bool:
        """Whether this is the reply to the round that was sent."""
        return (
            self._sent is not None
            and isinstance(reply, AnonymousReply)
            and reply.token == self._sent.instruction.token
        )

    @property
    def mechanism(self) -> PrivateSum:
        """What makes the reports of the round that was sent."""
        assert self._sent is not None
        return self._sent.invitation.mechanism

    def withdraw(self) -> None:
        """The round that was begun is not sent after all, and costs nothing."""
        if self._sent is not None:
            self._record.end(None, participants=self._sent.invited, released=False)
            self._sent = None

    def receive(self, replies: Iterable[Message]) -> tuple[SentRound, Total] | None:
        """The round that was sent, with the sum of its reports, once its cost is recorded; None if nothing is
        to be released. PrivacyBudgetExhausted if it cost more than planned, and than the budget covers.
        """
        received = list(replies)
        sent, self._sent = self._sent, None
        if sent is None:
            if received:
                raise ValueError("replies to a round that this strategy did not begin")
            return None
        reply = received[0] if len(received) == 1 else None
        if not isinstance(reply, AnonymousReply):
            raise ValueError(
                "these replies were not shuffled: send the messages by the ShuffleGrid they are for"
            )
        if reply.token != sent.instruction.token:
            raise ValueError("this reply is to another round")
        anonymous, mechanism, samples = reply.anonymous, sent.invitation.mechanism, sent.invitation.samples
        total = anonymous.total
        if total is None and anonymous.refusal is None and anonymous.reports is not None:
            total = valid_sum(mechanism, anonymous.reports)
        clients = 0 if total is None else total.reports // samples
        sent_by = anonymous.count // sent.instruction.reports_per_client
        invalid = 0 if total is None else sent_by - clients
        answered = anonymous.answered - invalid
        self._invited[sent.step] += sent.invitation.invited
        self._answered[sent.step] += answered  # not participants: a client that sends nonsense hides nobody
        if total is not None and (dropped := anonymous.unreadable + invalid):
            _log.warning("%s: %d replies dropped: no reports of this round", sent.step, dropped)
        if total is None or clients == 0:
            self._refuse(anonymous, sent, reply.errors)
            return None
        needed = self._settings.fewest_reports
        actual = self._settings.sampling.accounted(
            replace(sent.invitation, candidates=self._candidates(sent, clients)),
            answered=answered,
            # a sum is charged for no more than those that its noise was made for
            reports=clients if mechanism.cohort is None else min(clients, needed),
        )
        if clients < needed:
            self._record.end(actual, participants=anonymous.participants, released=False)
            _log.warning(
                "%s: reports of %d clients, %d needed (minimum_reports); not released",
                sent.step,
                clients,
                needed,
            )
            return None
        more_sampled = actual.observer.sampling_rate > sent.checked.observer.sampling_rate
        if more_sampled or actual.reports < sent.checked.reports:  # it may cost more than was checked
            try:
                self._record.check_budget(actual, participants=anonymous.participants)
            except PrivacyBudgetExhausted:
                self._record.end(actual, participants=anonymous.participants, released=False)
                raise
        self._record.end(actual, participants=anonymous.participants, released=True)
        self._errors.clear()
        return sent, total

    def _note_connected(self, candidates: Iterable[int]) -> None:
        """Count a node that has joined as the busiest one: it may be that one, restarted."""
        joined = frozenset(candidates) - self._seen
        if joined and (self._seen or self._record.has_names):
            _log.info(
                "%d nodes joined. They may be clients that took part before and were restarted: ε against "
                "the server assumes that each may be the one that has taken part most often so far",
                len(joined),
            )
            self._record.join(joined)
        self._seen |= joined

    def _log_statistics(self, names: list[str]) -> None:
        if names and names != self._statistics:
            _log.warning(
                "Running statistics stay at the server's values: %s. With noise a variance would soon be "
                "negative. Take another normalization, such as GroupNorm, or evaluate with statistics of "
                "public data",
                ", ".join(names),
            )
        self._statistics = names

    def _log_outlook(self, mechanism: PrivateSum, reports: float) -> None:
        """Log how a round's noise compares with the largest mean that can be; warn if noise wins."""
        case = (mechanism.dim, round(math.log2(reports)))  # again only if one of both is another
        if case == self._logged:
            return
        self._logged = case
        outlook = expected_noise(mechanism, cohort=reports, num_steps=self._planned)
        over = outlook.signal_to_noise_ratio_over(self._planned)
        _log.info(
            "Expected noise: %.3g long in the mean of %.0f reports of %s numbers; the largest mean that "
            "clipping allows is %.3g long. Signal to noise: at most %.2g in one round, %.2g over all %d",
            outlook.noise,
            reports,
            f"{outlook.dim:,}",
            outlook.largest_signal,
            outlook.signal_to_noise_ratio,
            over,
            self._planned,
        )
        if over < 1:
            # reports of a round for a ratio of 1; a sum would have to be built anew for so many
            enough = outlook.cohort / (over if outlook.local_epsilon is None else over**2)
            _log.warning(
                "This run will move the model by noise more than by training: signal to noise is at most "
                "%.2g over all rounds. What would help: about %s reports in each round, for a ratio of 1; or "
                "%s",
                over,
                f"{math.ceil(enough):,}",
                "; ".join(outlook.remedies()[1:]),
            )

    def _fewest_answers(self, invitation: Invitation) -> int:
        """With a budget against the server, as many must answer as the check of the budget assumed."""
        settings = self._settings
        observed = settings.max_epsilon is None or settings.adversary is Adversary.MODEL_OBSERVER
        return invitation.fewest if observed else settings.sampling.fewest_answers(invitation)

    def _candidates(self, sent: SentRound, reports: int) -> int:
        """How many candidates the round is charged with: as a client that never answers hides nobody, at most
        ``candidates`` × the share of this run's invitations to such a step that were answered.
        """
        invitation, step = sent.invitation, sent.step
        willing = invitation.candidates * self._answered[step] // self._invited[step]
        return min(invitation.candidates, max(invitation.invited, willing * invitation.invited // reports))

    def _refuse(self, anonymous: Anonymous, sent: SentRound, errors: Counter[str]) -> None:
        """Record a round without usable reports: for nothing, or at its worst if the stage's refusal leaves
        open that they were shuffled and seen (``Refusal.conclusive`` is False).

        The run ends if enough clients for a round answered and none by a report, which is an app without the
        mod (a few nodes cannot stop a run); and if client after client answered by an error.
        """
        lost = anonymous.refusal is not None and not anonymous.refusal.conclusive
        self._record.end(sent.worst if lost else None, participants=sent.invited, released=False)
        if anonymous.participants:
            self._errors.clear()
        else:
            self._errors.update(errors)
        if self._errors.total() >= min(sent.invitation.candidates, _ENOUGH_ERRORS):
            reasons = "\n".join(f"  {count}: {text}" for text, count in self._errors.most_common())
            raise ClientsRefused(
                f"of {self._errors.total()} clients asked last, up to round "
                f"{sent.instruction.server_round}, not one took part:\n{reasons}"
            )
        answered = len(anonymous.participants)
        foreign = anonymous.unreadable if anonymous.foreign is None else anonymous.foreign
        if answered >= self._settings.fewest_reports and foreign == answered:
            raise ValueError(
                f"none of {answered} replies holds a report of the round: is a ShuffleMod "
                "the first of the client app's mods? What came instead was not randomised, and is with this "
                "server now"
            )
        _log.warning(
            "%s: this round has no result (%s)%s; the run goes on without it",
            sent.step,
            anonymous.refusal or "no report in it",
            ", but costs as much as if it had" if lost else "",
        )


def connected(grid: Grid, *, needed: int, enough: int, waiting: Waiting, settling: float = 3.0) -> list[int]:
    """Wait until ``needed`` nodes are connected, or ``enough`` after the ``connect_timeout``; their ids in
    ascending order. In a simulation no more are waited for once their number has settled.
    """
    timeout = waiting.connect_timeout
    begun = changed = mention = time.monotonic()
    before = -1
    while len(nodes := sorted(set(grid.get_node_ids()))) < needed:
        now = time.monotonic()
        if len(nodes) != before:
            before, changed = len(nodes), now
        short = f"{len(nodes)} clients are connected, {needed} are needed (population)"
        if nodes and now - changed >= min(settling, timeout) and is_simulation(grid.get_nodes()):
            raise TimeoutError(
                f"{short}, and a simulation gets no more than it was started with. Start it with more, flwr "
                f"run . --federation-config 'num-supernodes={needed}' or num_supernodes={needed} or, of an "
                f"InProcessGrid, num_nodes={needed}, or ask for fewer (population and cohort)"
            )
        if now - begun >= timeout and len(nodes) < enough:
            raise TimeoutError(
                f"{short}; start more, or wait longer than the {timeout:g} s of connect_timeout"
            )
        if now - begun >= timeout:
            _log.warning(
                "%d clients are connected, %d are wanted, after the %g s of connect_timeout: the run goes on "
                "with those there are, as long as they are %d",
                *(len(nodes), needed, timeout, enough),
            )
            return nodes
        if now >= mention:
            mention = now + _MENTION_EVERY
            progress = len(nodes), needed, now - begun, timeout
            _log.info("Waiting for clients: %d of %d connected, %.0f of %g s (connect_timeout)", *progress)
        time.sleep(waiting.poll_interval)
    return nodes


def is_simulation(nodes: Iterable[NodeInfo]) -> bool:
    """Whether these are nodes of a simulation, whose heartbeats are not due within a day."""
    return min((node.heartbeat_interval for node in nodes), default=0.0) >= SIMULATED_HEARTBEAT
