"""Any Flower strategy, on shuffled private updates, with a budget that holds."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result, Strategy

# Flower has no public address for what its accountants answer.
from flwr.supercore.privacy_accounting import PrivacySpent
from torch import Tensor

from flwr_shuffle.clipping import PLAIN, QuantileClipping, UpdateTerms
from flwr_shuffle.evaluation import Metric, PrivateEvaluation, record_of
from flwr_shuffle.messages import RECORD_KEY, Instruction
from flwr_shuffle.randomizers import Randomizer, Spec
from flwr_shuffle.server.checkpoints import ModelState, restore_strategy, strategy_state
from flwr_shuffle.server.connecting import connected
from flwr_shuffle.server.outlook import tell_outlook
from flwr_shuffle.server.sampling import ClientSampling, SelfSampling
from flwr_shuffle.server.settings import Settings, mechanism_of, stage_of
from flwr_shuffle.server.spending_record import Books
from flwr_shuffle.server.strategies import check_strategy, needs_one_reply, own_start, starting
from flwr_shuffle.server.wrapped_strategy import (
    evaluation_messages,
    messages_of,
    model_of,
    synthetic_reply,
    typed_alike,
    weight_key,
)
from flwr_shuffle.stages.base import Anonymous, Needed, ShuffleStage
from flwr_shuffle.stages.grid import AnonymousReply, ShuffleGrid
from flwr_shuffle.stages.valid_reports import valid_sum
from flwr_shuffle.updates import Layout
from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    FederatedSpending,
)
from shuffle_plugins.core.rounding import rounded
from shuffle_plugins.ledger.budget import BudgetLedger
from shuffle_plugins.mechanisms.spec import MechanismSpec
from shuffle_plugins.protocols.sum_reports import Sum
from shuffle_plugins.shuffler.base import TOKEN_BYTES, Shuffler

_log = logging.getLogger("flwr")

_NORM, _INNER = "clipping-norm", "inner-strategy"

_ENOUGH_ERRORS = 20  # in a row: if half of all clients took part, one run in a million would come to that


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A round that was sent and not yet aggregated."""

    token: bytes
    server_round: int
    arrays: ArrayRecord
    arrays_key: str
    layout: Layout
    metrics: tuple[Metric, ...]
    terms: UpdateTerms
    mechanism: Randomizer
    candidates: int
    invited: int
    worst: FederatedRound
    checked: FederatedRound

    @property
    def step(self) -> str:
        """Where Flower's log is when the replies are there."""
        return "aggregate_evaluate" if self.metrics else "aggregate_train"


class ClientsRefused(RuntimeError):
    """One client after another refused to take part, or failed; the error says why, as far as it may."""


class ShuffleStrategy(Strategy):
    """Trains with another strategy on updates that clients randomised and somebody shuffled.

    Wrap a strategy, put a ``ShuffleMod`` first among the client app's mods, and call :meth:`start` as usual.
    In each round the clients' updates are clipped to the mechanism's ball and randomised before they leave
    the client; the inner strategy gets one reply, the current model moved by the unbiased mean of the
    shuffled reports, with weight 1. What a round costs is in the books before the inner strategy sees it.

    Every ε is certified, for replace-one neighbours, and says against whom: an ``observer`` of the models,
    for whom sampling amplifies; the ``server``, which knows who took part, for its most frequent client. Both
    take the shuffle for granted, so read the stage's ``trust``. If nobody is trusted, a client's ε is the sum
    of its ε0 (``local``).

    A round with too few reports is thrown away: the model stays as it is. With a ledger, a run that was
    killed goes on from its last completed round, with all that it spent. Momentum and moments of Flower's
    own strategies go on as well, and those of any with ``state_dict`` and ``load_state_dict``; another
    strategy that keeps something between rounds loses it.

    Args:
        strategy: FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi or your own. It must send one message
            to every node it is shown, ``fraction_train=1.0``, and be content with one reply. Flower's robust
            strategies, QFedAvg, the tree strategies and Flower's own differential privacy are refused.
        randomizer: name of a mechanism, see ``shuffle-plugins mechanisms``, or all of it as a spec; or a
            multi-message sum, :class:`~shuffle_plugins.protocols.VectorSum` or
            :class:`~shuffle_plugins.protocols.BallSum`, for noise that everybody's messages make together.
            Its ``clients`` are then the fewest reports, and every round is charged as if no more came.
        local_epsilon: ε0 of one report in nats, with a name.
        clipping_norm: radius of the ball that updates are clipped to, in the mechanism's norm, with a name.
        sampling: who takes part: :class:`FixedSize`, :class:`Poisson` or :class:`SelfSampling`.
        population: fewest connected clients to start a round; each round draws from all that are connected,
            and is accounted for with their number.
        adaptive_clipping: lets the clipping norm follow a quantile of the clients' updates; it starts at
            ``clipping_norm``. A sum's ``dim`` must then be one more than the model's.
        max_examples: weighs each update by the client's number of examples: by its number over this public
            one, and by 1 from there on. The weights stay on the clients; an update is weighed before it is
            clipped. None weighs all alike.
        shuffler: a stage, or a shuffler in this process; by default one that refuses less than 2 reports, for
            a sum a :class:`SummingStage`.
        minimum_reports: fewest reports to release a round, at least 2 and the shuffler's own minimum; by
            default 80 % of what can be expected (:meth:`ClientSampling.default_minimum`). The budget is
            checked before anything is sent, as if the round had so few (where clients sample themselves: as
            if a fifth dropped out), and again, before release, if it came out dearer.
        honest_fraction: share of the clients that follow the protocol and do not work with whom ε is against;
            1 by default. The others may send what they like: every ε is that of the honest ones among
            themselves. Where clients sample themselves, dummies beyond what ``rate`` explains count for
            nothing whatever is set here. A sum has its own ``honest_fraction``.
        accountant: a fresh one by default. With a ledger it must be fresh.
        ledger: a budget ledger, or a path to keep one at; None keeps no books beyond this process.
            A path is made absolute in the server's working folder, which in a deployment is the SuperLink's,
            and is printed.
        model: name of the model whose budget it is, if ``ledger`` is a path.
        app: name of the app that the ledger's budget belongs to; by default the run's own,
            ``publisher/name``.
            A run of another app, or of a model with other arrays, does not go on with it.
        delta: δ of every ε, in (0, 1); at most 1 / population is usual.
        max_epsilon: ε that must not be exceeded; None sets no budget.
        budget_against: whose ε that is.
        evaluation: what clients are asked about a model. None, the default, asks nothing, whatever the inner
            strategy would. A :class:`PrivateEvaluation` asks clients, drawn anew by ``sampling``, for metrics
            as randomised reports, shuffled by the same stage and entered in the same books; an evaluation
            that the budget does not allow is left out. ``"raw"`` sends what the inner strategy sends: the
            replies are NOT private, and come from clients whose operators allow them
            (``shuffle-allow-evaluate=true``).
        connect_timeout: seconds to wait for ``population`` clients at the start of a round.
        poll_interval: seconds between two looks for them.

    Raises:
        ValueError: if arguments are out of range or contradict each other.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from flwr_shuffle import FixedSize
        >>> strategy = ShuffleStrategy(
        ...     FedAvg(fraction_evaluate=0.0), randomizer="linf-block", local_epsilon=2.0, clipping_norm=0.1,
        ...     sampling=FixedSize(100), population=1000, delta=1e-6, max_epsilon=1.0,
        ... )
        >>> strategy.spending().num_rounds
        0
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        randomizer: str | MechanismSpec | Sum,
        local_epsilon: float | None = None,
        clipping_norm: float | None = None,
        sampling: ClientSampling,
        population: int,
        adaptive_clipping: QuantileClipping | None = None,
        max_examples: int | None = None,
        shuffler: ShuffleStage | Shuffler | None = None,
        minimum_reports: int | None = None,
        honest_fraction: float = 1.0,
        accountant: FederatedAccountant | None = None,
        ledger: BudgetLedger | str | os.PathLike[str] | None = None,
        model: str = "model",
        app: str | None = None,
        delta: float,
        max_epsilon: float | None = None,
        budget_against: Adversary = Adversary.MODEL_OBSERVER,
        evaluation: PrivateEvaluation | Literal["raw"] | None = None,
        connect_timeout: float = 600.0,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {strategy!r}")
        check_strategy(strategy)
        self.strategy = strategy
        mechanism = mechanism_of(randomizer, local_epsilon=local_epsilon, clipping_norm=clipping_norm)
        self._settings = Settings(
            mechanism=mechanism,
            sampling=sampling,
            population=population,
            minimum_reports=minimum_reports,
            honest_fraction=honest_fraction,
            stage=stage_of(shuffler, mechanism=mechanism),
            delta=delta,
            max_epsilon=max_epsilon,
            adversary=budget_against,
            connect_timeout=connect_timeout,
            poll_interval=poll_interval,
        )
        if ledger is not None and not isinstance(ledger, BudgetLedger):
            ledger = BudgetLedger(ledger, model=model)
        if not isinstance(evaluation, PrivateEvaluation) and evaluation not in (None, "raw"):
            raise ValueError(f'evaluation is a PrivateEvaluation, "raw" or None, got {evaluation!r}')
        self._evaluation = evaluation
        self._app = app
        self._books = Books(accountant or FederatedAccountant(), ledger=ledger)
        self._round: _Round | None = None
        self._arrays: ArrayRecord | None = None
        self._done = 0
        self._seen: frozenset[int] = frozenset()
        self._run = ""
        self._errors: Counter[str] = Counter()
        self._adaptive = adaptive_clipping
        self._terms = UpdateTerms(
            clipping_norm=None if adaptive_clipping is None else float(mechanism.radius),
            max_examples=max_examples,
            examples_key=weight_key(strategy),
        )
        self._planned = 1
        self._told: tuple[int, int, int] | None = None
        self._invited = self._answered = 0

    @property
    def arrays(self) -> ArrayRecord | None:
        """The model after the last released round, also when the budget ended the run; None before it."""
        return self._arrays

    @property
    def settings(self) -> Settings:
        """What the run was told to do."""
        return self._settings

    @property
    def minimum_reports(self) -> int:
        """Fewest reports with which a round is released."""
        return self._settings.fewest_reports

    @property
    def accountant(self) -> FederatedAccountant:
        """The rounds so far."""
        return self._books.accountant

    def spending(self, delta: float | None = None) -> FederatedSpending:
        """What all rounds cost, against observer, server and with nobody trusted, with lower bounds.

        Args:
            delta: the strategy's by default.

        Raises:
            ValueError: if ``delta`` is out of range.
        """
        return self._books.spending(self._settings.delta if delta is None else delta)

    def get_epsilon(self, delta: float) -> float:
        """The certified ε against the one the budget is held against."""
        return self._books.spent(delta, adversary=self._settings.adversary)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The certified ε against the one the budget is held against, in Flower's own form."""
        delta = self._settings.delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.accountant.num_rounds,
            accounting_method=f"shuffle-{self.accountant.method}, against {self._settings.adversary}",
        )

    def state_dict(self) -> Any:
        """The accountant's state, for a checkpoint of one's own; a ledger needs no such care."""
        return self.accountant.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on with the rounds of :meth:`state_dict`.

        Raises:
            ValueError: if it is not the state of an accountant, or a ledger keeps the books.
        """
        if self._books.durable:
            raise ValueError("the ledger keeps the books of this run; there is nothing to restore")
        self.accountant.load_state_dict(state)
        self.accountant.rename()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train as :meth:`flwr.serverapp.strategy.Strategy.start` does, each round shuffled.

        If the inner strategy has a ``start`` of its own, that is what runs, with its own files, logs and
        checkpoints; it gets each round's mean from here, and its result is given back if it is no ``Result``.

        With a ledger that has a checkpoint of this model, the run goes on after it: ``num_rounds`` counts the
        rounds before it as well, and ``initial_arrays`` says only what the model looks like.

        Raises:
            PrivacyBudgetExhausted: before a round that could exceed the budget. The model so far is in
                :attr:`arrays`, and in the ledger.
            TimeoutError: if fewer than ``population`` clients connect in time.
            WrongRecipients: if the inner strategy samples on its own.
            ClientsRefused: if client after client answers by an error; says for what reasons. The model so
                far is in :attr:`arrays`.
            LedgerError: if the ledger's budget is of another app, or of a model with other arrays.
            ValueError: if the checkpoint is of another model.
        """
        stage = self._settings.stage
        if isinstance(grid, ShuffleGrid) and grid.stage is not stage:
            raise ValueError("this grid shuffles by another stage: give the plain grid, or the same stage")
        shuffled = grid if isinstance(grid, ShuffleGrid) else ShuffleGrid(grid, stage=stage)
        self._books.reload()
        self._arrays, self._done, self._seen = None, 0, frozenset()  # of an earlier start() of this object
        self._books.claim(
            app=str(grid.run.fab_id) if self._app is None else self._app,
            layout=Layout.of(initial_arrays).digest,
        )
        self._resume(initial_arrays)
        shuffled.open()
        done = self._done
        if done >= num_rounds:
            _log.warning(
                "Nothing to train: the ledger has all %d rounds of this model already (%s). Ask for more "
                "(num_rounds), or name another ledger or model to begin again",
                done,
                self._books.where,
            )
        elif done:
            _log.info("Going on after round %d; the rounds below are counted from there", done)
        self._planned = max(1, num_rounds)
        run: Callable[..., Any] = super().start
        if own_start(self.strategy):
            run = starting(self.strategy, host=self)
        try:
            result = run(
                grid=shuffled,
                initial_arrays=initial_arrays if self._arrays is None else self._arrays,
                num_rounds=max(0, num_rounds - done),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=None
                if evaluate_fn is None
                else lambda now, model: evaluate_fn(now + done, model),
            )
        finally:
            self._books.settle()  # a round that was cut off after it was sent counts
        if num_rounds > done and self._arrays is None:
            _log.warning("No round was released: the model is the initial one. See the warnings above")
        if not isinstance(result, Result):
            return cast(Result, result)  # whatever the inner strategy's own start() returns
        return Result(
            arrays=initial_arrays if self._arrays is None else self._arrays,
            train_metrics_clientapp=_later(result.train_metrics_clientapp, done),
            evaluate_metrics_clientapp=_later(result.evaluate_metrics_clientapp, done),
            evaluate_metrics_serverapp=_later(result.evaluate_metrics_serverapp, done),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw a cohort, let the inner strategy write to it, and enter the round; called by Flower.

        No messages, if chance drew fewer clients than ``minimum_reports``: the round is left out.
        """
        server_round += self._done
        drawn = self._drawn(grid, step="configure_train")
        if drawn is None:
            return []
        candidates, cohort = drawn
        messages = messages_of(
            self.strategy, server_round=server_round, arrays=arrays, config=config, grid=grid, cohort=cohort
        )
        self._begin(messages, server_round=server_round, candidates=candidates)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Enter what the round cost, then hand its mean to the inner strategy; called by Flower.

        (None, None) if nothing is released. The metrics say ``reports``, ``epsilon-observer`` and
        ``epsilon-server``.
        """
        del server_round
        current, found = self._received(replies)
        if current is None or found is None:
            return None, None
        total, count = found
        mean, share = current.terms.read(total / count, current.mechanism)
        if share is not None and self._adaptive is not None:
            norm = self._adaptive.moved(current.terms.clipping_norm or 0.0, share=share)
            self._terms = current.terms.at(norm)
            _log.info(
                "aggregate_train: %.0f %% were within the clipping norm; it is now %.3g", 100 * share, norm
            )
        arrays, metrics = self._released(current, mean)
        return arrays, self._with_spending(current, metrics, count)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """What clients are asked about the model, by ``evaluation``; called by Flower."""
        server_round += self._done
        asked = self._evaluation
        if asked == "raw":
            return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        if asked is None or server_round % asked.every:
            return []
        drawn = self._drawn(grid, step="configure_evaluate")
        if drawn is None:
            return []
        candidates, cohort = drawn
        messages = evaluation_messages(
            self.strategy, server_round=server_round, arrays=arrays, config=config, cohort=cohort
        )
        try:
            self._begin(messages, server_round=server_round, candidates=candidates, evaluation=asked)
        except PrivacyBudgetExhausted as exhausted:
            _log.warning("configure_evaluate: left out, as %s", exhausted)
            return []
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What clients answered, put together; called by Flower.

        Of a :class:`PrivateEvaluation` the mean of each metric, with ``reports``, ``epsilon-observer`` and
        ``epsilon-server`` as in training; None if nothing is released.
        """
        if self._evaluation == "raw":
            return self.strategy.aggregate_evaluate(server_round + self._done, replies)
        if self._evaluation is None:
            return None
        current, found = self._received(replies)
        if current is None or found is None:
            return None
        total, count = found
        self._books.complete(current.token, checkpoint=None)
        return self._with_spending(current, record_of(current.metrics, total / count), count)

    def _drawn(self, grid: Grid, *, step: str) -> tuple[int, list[int]] | None:
        """How many clients are connected, and which of them are invited; None if those are too few."""
        settings = self._settings
        if not isinstance(grid, ShuffleGrid) or grid.stage is not settings.stage:
            raise ValueError(
                "a shuffled round needs a ShuffleGrid with this strategy's stage: call start(), or wrap the "
                "grid yourself"
            )
        self._round = None
        self._books.settle()
        grid.open()
        candidates = self._connected(grid)
        self._note_connected(candidates)
        cohort = settings.sampling.draw(candidates)
        _log.info("%s: invited %d clients of %d", step, len(cohort), len(candidates))
        if len(cohort) < self.minimum_reports:
            _log.warning("%s: %d clients drawn, %d needed; left out", step, len(cohort), self.minimum_reports)
            return None
        self._run = str(grid.run.run_id)
        return len(candidates), cohort

    def _begin(
        self,
        messages: list[Message],
        *,
        server_round: int,
        candidates: int,
        evaluation: PrivateEvaluation | None = None,
    ) -> None:
        """Ask the budget, put the instruction into the messages, and enter the round before they are sent.

        Raises:
            PrivacyBudgetExhausted: if the round could cost more than is left; nothing is entered then.
        """
        settings, minimum, share = self._settings, self.minimum_reports, self._settings.honest_fraction
        key, sent = model_of(messages, kind=MessageType.TRAIN if evaluation is None else MessageType.EVALUATE)
        layout = Layout.of(sent)
        metrics = () if evaluation is None else evaluation.ranges
        spec: Spec = settings.mechanism if evaluation is None else evaluation.mechanism
        terms = self._terms if evaluation is None else PLAIN
        mechanism = spec.build(dim=len(metrics) or layout.dim + terms.bits)
        drawn = {"candidates": candidates, "invited": len(messages), "minimum": minimum}
        worst = settings.sampling.worst(mechanism, **drawn, honest_fraction=share)
        checked = settings.sampling.planned(mechanism, **drawn, honest_fraction=share)
        self._check_budget(checked)
        if evaluation is None:
            self._tell_outlook(mechanism, len(messages))
        settings.stage.require(self._needed(len(messages)))
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
        )
        record = instruction.to_record()
        for message in messages:
            message.content[RECORD_KEY] = record
        self._books.begin(instruction.token, run=instruction.run, server_round=server_round, worst=worst)
        self._round = _Round(
            token=instruction.token,
            server_round=server_round,
            arrays=sent,
            arrays_key=key,
            layout=layout,
            metrics=metrics,
            terms=terms,
            mechanism=mechanism,
            candidates=candidates,
            invited=len(messages),
            worst=worst,
            checked=checked,
        )

    def _received(self, replies: Iterable[Message]) -> tuple[_Round | None, tuple[Tensor, int] | None]:
        """The round under way, with the sum of its reports and their number once they are in the books.

        None in place of the sum if nothing is to be released.
        """
        received = list(replies)
        current, self._round = self._round, None
        if current is None:
            if received:
                raise ValueError("replies to a round that this strategy did not begin")
            return None, None
        anonymous, errors = _anonymous(received, current)
        self._invited += current.invited
        self._answered += anonymous.answered  # and not participants: who sends nonsense hides nobody
        if anonymous.count == 0 or anonymous.refusal is not None:
            self._refuse(anonymous, current, errors)
            return current, None
        total, count = _summed(anonymous, current.mechanism)
        self._answered -= anonymous.count - count
        dropped = anonymous.unreadable + anonymous.count - count
        if dropped:
            _log.warning("%s: %d replies dropped: no reports of this round", current.step, dropped)
        if count == 0:
            self._refuse(anonymous, current, errors)
            return current, None
        actual = self._settings.sampling.accounted(
            current.mechanism,
            candidates=self._hiding(current, count),
            invited=current.invited,
            answered=anonymous.answered - (anonymous.count - count),
            reports=count if current.metrics else self._settings.charged_reports(count),
            honest_fraction=self._settings.honest_fraction,
        )
        if count < self.minimum_reports:
            self._books.refuse(actual=actual, participants=anonymous.participants)
            _log.warning("%s: %d reports, %d needed; not released", current.step, count, self.minimum_reports)
            return current, None
        self._check_dearer(actual, current.checked, anonymous)
        self._books.receive(actual=actual, participants=anonymous.participants)
        self._errors.clear()
        return current, (total, count)

    def summary(self) -> None:
        """Log what protects the clients and what was spent, then the inner strategy's summary."""
        settings = self._settings
        budget = "none"
        if settings.max_epsilon is not None:
            budget = f"ε ≤ {settings.max_epsilon:g} against {settings.adversary}"
        lines = [
            f"Randomizer: {settings.mechanism.name}, ε0 = {settings.mechanism.local_epsilon:g}",
            f"Clipping norm: {self._terms.clipping_norm or settings.mechanism.radius:g}",
            f"Sampling: {settings.sampling} of at least {settings.population} clients",
            f"Fewest reports: {self.minimum_reports}",
            f"Assumed honest: {settings.honest_fraction:.0%} of the clients",
            f"Budget: {budget}, δ = {settings.delta:g}, replace-one neighbours",
            f"Books: {self._books.where}",
        ]
        if self.accountant.num_rounds:
            lines.append(f"Spent: {self._spent_line()} ({self.accountant.num_rounds} rounds)")
        if settings.delta > 1 / settings.population:
            lines.append("δ is above 1/population: it allows that one client's data is shown as it is")
        if self._evaluation == "raw":
            lines.append("Evaluation is NOT private: clients' evaluate replies reach the server as they are")
        elif self._evaluation is None:
            lines.append("Evaluation: clients are asked nothing (evaluation=None)")
        if not needs_one_reply(self.strategy):
            lines.append("The inner strategy's own aggregate_train gets one reply, the mean of all reports")
        if isinstance(settings.sampling, SelfSampling) and not settings.stage.analyzer_key:
            lines.append("Participation is open to this process: only a mix node hides it from the server")
        _log.info("\t├──> Shuffle-model differential privacy:")
        for line in lines:
            _log.info("\t│\t├── %s", line)
        _log.info("\t│\t└── Trust: %s", settings.stage.trust)
        self.strategy.summary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy!r}, {self._settings!r})"

    def _resume(self, initial: ArrayRecord) -> None:
        checkpoint = self._books.last_checkpoint()
        if checkpoint is None:
            return
        state = ModelState.from_bytes(checkpoint.data)
        if Layout.of(state.arrays) != Layout.of(initial):
            raise ValueError(
                "the ledger's checkpoint is of a model with other arrays; give this model another name "
                "(model=…) or another ledger"
            )
        restore_strategy(self.strategy, self._restored(state.strategy))
        self._arrays = state.arrays
        self._done = checkpoint.server_round

    def _connected(self, grid: Grid) -> list[int]:
        settings = self._settings
        return connected(
            grid,
            needed=settings.population,
            timeout=settings.connect_timeout,
            poll_interval=settings.poll_interval,
        )

    def _kept(self) -> Any:
        """What the next process needs beside the model."""
        kept = strategy_state(self.strategy)
        if self._terms.clipping_norm is None:
            return kept
        return {_NORM: self._terms.clipping_norm, _INNER: kept}

    def _restored(self, kept: Any) -> Any:
        """The inner strategy's part of what :meth:`_kept` kept."""
        adapted = isinstance(kept, dict) and kept.keys() == {_NORM, _INNER}
        if adapted and self._adaptive is not None:
            self._terms = self._terms.at(float(kept[_NORM]))
        return kept[_INNER] if adapted else kept

    def _note_connected(self, candidates: Iterable[int]) -> None:
        """Count participation anew if a node has joined: it may be one that took part and was restarted.

        To Flower a SuperNode without a key of its own is another node after a restart, and the old one counts
        as connected for a while.
        """
        joined = frozenset(candidates) - self._seen
        if joined and self._seen:
            _log.info(
                "%d nodes joined. They may be clients that took part before and were restarted: from here on "
                "ε against the server counts every client as any of those before",
                len(joined),
            )
            self._books.rename()
        self._seen |= joined

    def _tell_outlook(self, mechanism: Randomizer, invited: int) -> None:
        """Once, and again if the model, the rounds or the size of a cohort's order of magnitude change."""
        reports = invited * self._settings.sampling.participation
        case = (mechanism.dim, self._planned, round(math.log2(reports)))
        if case != self._told:
            tell_outlook(mechanism, reports=reports, num_rounds=self._planned)
        self._told = case

    def _check_budget(self, federated_round: FederatedRound) -> None:
        settings = self._settings
        if settings.max_epsilon is None:
            return
        if self._books.would_exceed(
            federated_round,
            max_epsilon=settings.max_epsilon,
            delta=settings.delta,
            adversary=settings.adversary,
        ):
            raise PrivacyBudgetExhausted(
                f"another round could take ε against {settings.adversary} over {settings.max_epsilon:g} at "
                f"δ = {settings.delta:g}; after {self.accountant.num_rounds} rounds: {self._spent_line()}"
            )

    def _check_dearer(self, actual: FederatedRound, checked: FederatedRound, anonymous: Anonymous) -> None:
        """Ask the budget again about a round that is not covered by the one asked about before."""
        if (
            actual.observer.sampling_rate <= checked.observer.sampling_rate
            and actual.reports >= checked.reports
        ):
            return
        try:
            self._check_budget(actual)
        except PrivacyBudgetExhausted:
            self._books.refuse(actual=actual, participants=anonymous.participants)
            raise

    def _hiding(self, current: _Round, reports: int) -> int:
        """Candidates of the round, less those that do not seem to answer at all.

        Rounds are released if many answered. Were that chance, their number would be right; if some clients
        never answer, the others hide among themselves. So a round is not taken to have had more clients
        willing to answer than all rounds of the run have on average, those that were refused included.
        """
        willing = current.candidates * self._answered // self._invited
        return min(current.candidates, max(current.invited, willing * current.invited // reports))

    def _needed(self, invited: int) -> Needed:
        """What must come together for the reports to be seen at all.

        Where a budget holds against who sees them, that is whatever the budget was asked about.
        """
        settings, reports = self._settings, self.minimum_reports
        if settings.max_epsilon is None or settings.adversary is Adversary.MODEL_OBSERVER:
            return Needed(reports=reports, answered=reports)
        answered = settings.sampling.fewest_answers(invited=invited, minimum=reports)
        return Needed(reports=reports, answered=answered)

    def _refuse(self, anonymous: Anonymous, current: _Round, errors: Counter[str]) -> None:
        """Nobody saw these reports shuffled, unless a mixer's answer was lost on its way.

        Raises:
            ValueError: if enough clients for a round answered, and no answer was a report: that is an app
                without the mod. Fewer are drop-outs, lest a few nodes could stop a run.
            ClientsRefused: if all connected clients, or the last 20 that were asked, answered by errors.
        """
        lost = anonymous.refusal is not None and not anonymous.refusal.conclusive
        self._books.refuse(actual=current.worst if lost else None, participants=None)
        reason = anonymous.refusal or "no report in it"
        _log.warning("%s: the batch was refused (%s); nothing is released", current.step, reason)
        if anonymous.participants:
            self._errors.clear()
        else:
            self._errors.update(errors)
        if self._errors.total() >= min(current.candidates, _ENOUGH_ERRORS):
            reasons = "\n".join(f"  {count}: {text}" for text, count in self._errors.most_common())
            raise ClientsRefused(
                f"of {self._errors.total()} clients asked last, up to round {current.server_round}, not one "
                f"took part:\n{reasons}"
            )
        answered = len(anonymous.participants)
        if answered >= self.minimum_reports and anonymous.unreadable == answered:
            raise ValueError(
                f"none of {answered} replies holds a report of the round: is a ShuffleMod "
                "the first of the client app's mods? What came instead was not randomised, and is with this "
                "server now"
            )

    def _released(self, current: _Round, mean: Tensor) -> tuple[ArrayRecord | None, MetricRecord | None]:
        moved = current.layout.shifted(current.arrays, mean)
        reply = synthetic_reply(self.strategy, moved, key=current.arrays_key)
        arrays, metrics = self.strategy.aggregate_train(current.server_round, [reply])
        if arrays is None:
            self._books.complete(current.token, checkpoint=None)
            return None, metrics
        arrays = typed_alike(arrays, current.arrays)
        checkpoint = ModelState(arrays, self._kept()).to_bytes() if self._books.durable else None
        self._books.complete(current.token, checkpoint=checkpoint)
        self._arrays = arrays
        return arrays, metrics

    def _with_spending(self, current: _Round, metrics: MetricRecord | None, reports: int) -> MetricRecord:
        told = MetricRecord() if metrics is None else metrics
        told["reports"] = reports
        for key, adversary in (
            ("epsilon-observer", Adversary.MODEL_OBSERVER),
            ("epsilon-server", Adversary.SERVER),
        ):
            told[key] = self._books.spent(self._settings.delta, adversary=adversary)
        _log.info("%s: %d reports; %s", current.step, reports, self._spent_line())
        return told

    def _spent_line(self) -> str:
        delta = self._settings.delta
        observer, server = (
            rounded(self._books.spent(delta, adversary=adversary), up=True)
            for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER)
        )
        return f"ε ≤ {observer} against an observer, ≤ {server} against the server"


def _anonymous(received: list[Message], current: _Round) -> tuple[Anonymous, Counter[str]]:
    if len(received) != 1 or not isinstance(received[0], AnonymousReply):
        raise ValueError("these replies were not shuffled: send the messages by the ShuffleGrid they are for")
    if received[0].token != current.token:
        raise ValueError("this reply is to another round")
    return received[0].anonymous, received[0].errors


def _summed(anonymous: Anonymous, mechanism: Randomizer) -> tuple[Tensor, int]:
    """The sum of the valid reports, and how many those are."""
    if anonymous.total is not None:
        return anonymous.total.sum, anonymous.total.reports
    assert anonymous.reports is not None
    return valid_sum(mechanism, anonymous.reports)


def _later(metrics: dict[int, MetricRecord], rounds: int) -> dict[int, MetricRecord]:
    return {server_round + rounds: record for server_round, record in metrics.items()}
