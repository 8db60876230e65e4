"""A run's rounds, one at a time: draws the cohort, asks the budget, records the cost, adds reports up."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, Message, MessageType
from flwr.proto.node_pb2 import NodeInfo  # Flower has no public address for what Grid.get_nodes returns
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from torch import Tensor

from flwr_shuffle.evaluation import PrivateEvaluation
from flwr_shuffle.grids import InProcessGrid, Waiting, innermost
from flwr_shuffle.messages import RECORD_KEY, Instruction
from flwr_shuffle.server.inner_strategy import model_of
from flwr_shuffle.server.report import log_outlook, log_statistics
from flwr_shuffle.server.sampling import Invitation
from flwr_shuffle.server.settings import Settings
from flwr_shuffle.server.spending_record import SpendingRecord
from flwr_shuffle.stages.grid import AnonymousReply, ShuffleGrid
from flwr_shuffle.stages.stage import Anonymous, Needed, Total, valid_sum
from flwr_shuffle.updates import Layout, UpdateTerms, running_statistics, trained_names
from shuffle_plugins.accounting import Adversary, FederatedRound
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.shuffler.shuffler import TOKEN_BYTES

_log = logging.getLogger("flwr")

_MENTION_EVERY = 10.0  # seconds between two lines about progress
_SIMULATION_SETTLES = 3.0  # seconds after which a simulation gets no more nodes
_LONGEST_HEARTBEAT = 86_400.0  # seconds; a SuperNode's is half an hour at most, a simulated node's is ages
_ENOUGH_ERRORS = 20  # with no participant in between; if each client took part with probability ½: 2**-20


class ClientsRefused(RuntimeError):
    """One client after another refused to take part, or failed; the text says why, as far as clients say."""


@dataclass(frozen=True, kw_only=True)
class SentRound:
    """A round that was sent: what clients were told, the model, and whom it was sent to.

    ``worst`` is the highest cost that it can have, ``checked`` the round that the budget was asked about. The
    instruction's number counts rounds of earlier runs of the model.
    """

    instruction: Instruction
    arrays: ArrayRecord
    arrays_key: str
    layout: Layout
    invitation: Invitation
    worst: FederatedRound
    checked: FederatedRound

    def mean(self, total: Total) -> Tensor:
        """The estimated mean over those who took part, (dim,).

        How many took part of those who added to a sum is not known: the number expected stands for it.
        """
        summed = self.invitation.mechanism.must_be_summed
        return total.sum / (total.reports * (self.instruction.participation if summed else 1.0))

    @property
    def mark(self) -> Tensor:
        """What clients whose app failed reported in training, as :meth:`UpdateTerms.read` gives it back."""
        return self.instruction.update.mark(self.instruction.token, self.invitation.mechanism)

    @property
    def step(self) -> str:
        """Name of the Flower method that aggregates this round, for the log."""
        return "aggregate_evaluate" if self.instruction.metrics else "aggregate_train"


class Rounds:
    """Draws, begins and receives the rounds of a run.

    Each is recorded twice: at its worst possible cost before it is sent, and at its actual cost before its
    sum is released.
    """

    def __init__(self, settings: Settings, *, record: SpendingRecord) -> None:
        self._settings = settings
        self._record = record
        self._sent: SentRound | None = None
        self._run = ""
        self._seen: frozenset[int] = frozenset()
        self._awaited = settings.population
        self._errors: Counter[str] = Counter()
        self._invited = self._answered = 0
        self._planned = 1
        self._statistics: list[str] = []
        self._logged: tuple[int, int, int] | None = None

    def start(self, *, num_rounds: int) -> None:
        """Begin a run of ``num_rounds`` rounds; its node ids cannot be compared with an earlier run's."""
        self._planned = max(1, num_rounds)
        self._seen = frozenset()
        self._awaited = self._settings.population

    def draw(self, grid: Grid, *, step: str) -> tuple[int, list[int]] | None:
        """How many clients are connected, and which of them are invited.

        None if fewer clients were drawn than a release needs.
        """
        settings = self._settings
        if not isinstance(grid, ShuffleGrid) or grid.stage is not settings.stage:
            raise ValueError(
                "a shuffled round needs a ShuffleGrid with this strategy's stage: call start(), or wrap the "
                "grid yourself"
            )
        self._sent = None
        self._record.settle()
        grid.open()
        candidates = connected(
            grid,
            needed=self._awaited,
            enough=settings.fewest_reports if self._seen else settings.population,
            waiting=settings.waiting,
        )
        self._awaited = min(self._awaited, len(candidates))  # who is gone is waited for once
        self._note_connected(candidates)
        cohort = settings.sampling.draw(candidates)
        _log.info("%s: invited %d clients of %d", step, len(cohort), len(candidates))
        needed = settings.fewest_reports
        if len(cohort) < needed:
            _log.warning(
                "%s: %d clients drawn, %d needed (%s); left out. Invite more, or lower that minimum",
                step,
                len(cohort),
                needed,
                "minimum of the stage, or shuffle-min-batch of its nodes"
                if needed == settings.stage.minimum
                else "minimum_reports, or the clients of the sum",
            )
            return None
        self._run = str(grid.run.run_id)
        return len(candidates), cohort

    def begin(
        self,
        messages: list[Message],
        *,
        server_round: int,
        candidates: int,
        terms: UpdateTerms | None = None,
        evaluation: PrivateEvaluation | None = None,
    ) -> None:
        """Ask the budget, put the instruction into the messages, and record the round before they are sent.

        Nothing is recorded if the budget does not allow it (PrivacyBudgetExhausted). ``terms`` are for
        training, ``evaluation`` for a round of metrics.
        """
        settings, invited = self._settings, len(messages)
        kind = MessageType.TRAIN if evaluation is None else MessageType.EVALUATE
        key, arrays = model_of(messages, kind=kind)
        terms = UpdateTerms() if terms is None else terms
        if evaluation is None:
            terms = replace(terms, trained=trained_names(arrays, wanted=settings.updates.trained))
            log_statistics(running_statistics(arrays), before=self._statistics)
            self._statistics = running_statistics(arrays)
        layout = Layout.of(arrays, trained=terms.trained)
        metrics = () if evaluation is None else evaluation.ranges
        spec = settings.mechanism if evaluation is None else settings.spec_of(evaluation)
        mechanism = spec.build(dim=len(metrics) or layout.dim + terms.bits)
        invitation = Invitation(
            mechanism=mechanism,
            candidates=candidates,
            invited=invited,
            hides_shares=settings.stage.hides_shares,
            samples=settings.updates.samples_per_client if evaluation is None else 1,
            fewest=settings.fewest_reports,
        )
        minimum = settings.fewest_reports
        worst = settings.sampling.worst(invitation, minimum=minimum)
        checked = settings.sampling.planned(invitation, minimum=minimum)
        shared = settings.stage.shared(mechanism, clients=invited)
        self._record.check_budget(checked)
        if evaluation is None:
            self._log_outlook(mechanism, invited * invitation.samples)
        settings.stage.require(self._needed(invitation))
        instruction = Instruction(
            token=secrets.token_bytes(TOKEN_BYTES),
            run=self._run,
            server_round=server_round,
            mechanism=spec,
            participation=settings.sampling.participation,
            analyzer_key=settings.stage.analyzer_key,
            minimum=minimum,
            metrics=metrics,
            update=terms,
            mixers=settings.stage.mixers,
            shared=shared,
            records_per_client=settings.updates.records_per_client if evaluation is None else 1,
            samples_per_client=invitation.samples,
        )
        record = instruction.to_record()
        for message in messages:
            message.content[RECORD_KEY] = record
        self._record.begin(instruction.token, run=instruction.run, server_round=server_round, worst=worst)
        self._sent = SentRound(
            instruction=instruction,
            arrays=arrays,
            arrays_key=key,
            layout=layout,
            invitation=invitation,
            worst=worst,
            checked=checked,
        )

    def receive(self, replies: Iterable[Message]) -> tuple[SentRound, Total] | None:
        """The round that was sent, with the sum of its reports, once its cost is recorded.

        None if nothing is to be released. PrivacyBudgetExhausted if fewer reports or a higher sampling rate
        than planned made the round cost more, and the budget does not cover it.
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
        anonymous = reply.anonymous
        self._invited += sent.invitation.invited
        self._answered += anonymous.answered  # not participants: a client that sends nonsense hides nobody
        total = _summed(anonymous, sent.invitation.mechanism)
        samples = sent.invitation.samples
        clients = 0 if total is None else total.reports // samples
        invalid = 0 if total is None else anonymous.count // samples - clients
        self._answered -= invalid
        if total is not None and (dropped := anonymous.unreadable + invalid):
            _log.warning("%s: %d replies dropped: no reports of this round", sent.step, dropped)
        if total is None or clients == 0:
            self._refuse(anonymous, sent, reply.errors)
            return None
        actual = self._settings.sampling.accounted(
            replace(sent.invitation, candidates=self._candidates(sent.invitation, clients)),
            answered=anonymous.answered - invalid,
            # a sum is charged for as many as its noise was made for
            reports=self._settings.fewest_reports if sent.invitation.mechanism.must_be_summed else clients,
        )
        needed = self._settings.fewest_reports
        if clients < needed:
            self._record.refuse(actual=actual, participants=anonymous.participants)
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
                self._record.check_budget(actual)
            except PrivacyBudgetExhausted:
                self._record.refuse(actual=actual, participants=anonymous.participants)
                raise
        self._record.receive(actual=actual, participants=anonymous.participants)
        self._errors.clear()
        return sent, total

    def _note_connected(self, candidates: Iterable[int]) -> None:
        """Count participation anew if a node has joined: it may be one that took part and was restarted.

        To Flower it is another node then, and the old one counts as connected for a while.
        """
        joined = frozenset(candidates) - self._seen
        if joined and self._seen:
            _log.info(
                "%d nodes joined. They may be clients that took part before and were restarted: from now on, "
                "ε against the server assumes that each client may be the one that has taken part "
                "most often so far",
                len(joined),
            )
            self._record.rename()
        self._seen |= joined

    def _log_outlook(self, mechanism: PrivateSum, asked: int) -> None:
        """Log how much noise to expect; again only if the model, the rounds, or the reports (by a factor of
        2) change.
        """
        reports = asked * self._settings.sampling.participation
        case = (mechanism.dim, self._planned, round(math.log2(reports)))
        if case != self._logged:
            log_outlook(mechanism, reports=reports, num_rounds=self._planned)
        self._logged = case

    def _needed(self, invitation: Invitation) -> Needed:
        """The fewest reports and answers with which the stage may let reports out.

        With a budget against the server, as many clients must answer as the check of the budget assumed.
        """
        settings, reports = self._settings, self._settings.fewest_reports
        observed = settings.max_epsilon is None or settings.adversary is Adversary.MODEL_OBSERVER
        if observed or invitation.mechanism.must_be_summed:
            return Needed(reports=reports, answered=reports)
        answered = settings.sampling.fewest_answers(invited=invitation.invited, minimum=reports)
        return Needed(reports=reports, answered=answered)

    def _candidates(self, invitation: Invitation, reports: int) -> int:
        """How many candidates the round is charged with.

        A client that never answers hides nobody. So the cohort is taken to hide among at most ``candidates``
        × the share of all this run's invitations that were answered, refused rounds included.
        """
        willing = invitation.candidates * self._answered // self._invited
        return min(invitation.candidates, max(invitation.invited, willing * invitation.invited // reports))

    def _refuse(self, anonymous: Anonymous, sent: SentRound, errors: Counter[str]) -> None:
        """Record a round without usable reports.

        It costs nothing, unless the stage's refusal leaves open that the reports were shuffled and seen
        (``Refusal.conclusive`` is False): then it is charged at its worst.

        Raises:
            ValueError: if enough clients for a round answered, and no answer was a report: that is an app
                without the mod. Fewer count as drop-outs, so that a few nodes cannot stop a run.
            ClientsRefused: if all connected clients, or the last 20 that were asked, answered by errors.
        """
        lost = anonymous.refusal is not None and not anonymous.refusal.conclusive
        self._record.refuse(actual=sent.worst if lost else None, participants=None)
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


def _summed(anonymous: Anonymous, mechanism: PrivateSum) -> Total | None:
    """The sum of the valid reports; None if the batch was refused or no report came."""
    if anonymous.refusal is not None or anonymous.count == 0:
        return None
    if anonymous.total is not None:
        return anonymous.total
    assert anonymous.reports is not None
    return valid_sum(mechanism, anonymous.reports)


def connected(
    grid: Grid,
    *,
    needed: int,
    enough: int,
    waiting: Waiting,
    settling: float = _SIMULATION_SETTLES,
) -> list[int]:
    """Wait until ``needed`` nodes are connected; their ids in ascending order.

    If they are fewer after the ``connect_timeout``, and ``enough``, a warning says so and they are returned.
    A simulation has as many clients as it was started with: once their number has not changed for
    ``settling`` seconds, no more are waited for. Its nodes are recognised by their heartbeats, which are
    never due.
    """
    inner, timeout = innermost(grid), waiting.connect_timeout
    if isinstance(inner, InProcessGrid) and inner.num_nodes < needed:
        nodes = sorted(set(grid.get_node_ids()))
        raise TimeoutError(
            f"{len(nodes)} clients are connected, {needed} are needed (population), and an "
            f"InProcessGrid gets no more than it was made with. Make it with more, InProcessGrid(app, "
            f"num_nodes={needed}), or ask for fewer with a smaller population and cohort"
        )
    begun = changed = time.monotonic()
    mention = begun
    before = -1
    while len(nodes := sorted(set(grid.get_node_ids()))) < needed:
        now = time.monotonic()
        if len(nodes) != before:
            before, changed = len(nodes), now
        if nodes and now - changed >= min(settling, timeout) and is_simulation(grid.get_nodes()):
            raise TimeoutError(
                f"{len(nodes)} clients are connected, {needed} are needed (population), and a simulation "
                "gets no more than it was started with. Start it with more, flwr run . --federation-config "
                f"'num-supernodes={needed}' or run_simulation(num_supernodes={needed}), or ask for fewer "
                "with a smaller population and cohort"
            )
        if now - begun >= timeout and len(nodes) >= enough:
            _log.warning(
                "%d clients are connected, %d are wanted, after the %g s of connect_timeout: the run goes on "
                "with those there are, as long as they are %d. The fewer, the less they hide each other",
                len(nodes),
                needed,
                timeout,
                enough,
            )
            return nodes
        if now - begun >= timeout:
            raise TimeoutError(
                f"{len(nodes)} clients are connected, {needed} are needed (population); start more, or "
                f"wait longer than the {timeout:g} s of connect_timeout"
            )
        if now >= mention:
            mention = now + _MENTION_EVERY
            _log.info(
                "Waiting for clients: %d of %d connected, %.0f of %g s (connect_timeout)",
                len(nodes),
                needed,
                now - begun,
                timeout,
            )
        time.sleep(waiting.poll_interval)
    return nodes


def is_simulation(nodes: Iterable[NodeInfo]) -> bool:
    """Whether these are nodes of Flower's simulation, whose heartbeats are not due within a day."""
    intervals = [node.heartbeat_interval for node in nodes]
    return bool(intervals) and min(intervals) > _LONGEST_HEARTBEAT
