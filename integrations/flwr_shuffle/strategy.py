"""A strategy that trains with any other of Flower's, on private updates, within a budget."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result, Strategy

# Flower has no public address for what its accountants answer.
from flwr.supercore.privacy_accounting import PrivacySpent
from torch import Tensor
from typing_extensions import override

from flwr_shuffle.grids import ShuffleGrid, ShuffleStage, Waiting
from flwr_shuffle.inner_strategy import (
    ModelState,
    check_strategy,
    evaluation_messages,
    messages_of,
    needs_one_reply,
    own_start,
    restore_strategy,
    starting,
    strategy_state,
    synthetic_reply,
    typed_alike,
    weight_key,
)
from flwr_shuffle.metrics import PrivateEvaluation, record_of
from flwr_shuffle.rounds import Rounds, SentRound, SpendingRecord
from flwr_shuffle.settings import ClientSampling, FixedSize, Settings, mechanism_of, stage_of, trust_of
from flwr_shuffle.updates import Failures, Layout, Updates, UpdateTerms
from shuffle_plugins.accounting import (
    Adversary,
    Cover,
    DataAccess,
    FederatedAccountant,
    FederatedSpending,
    PrivacyStatement,
    Unit,
    delta_warning,
)
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import MechanismSpec, PrivateSum
from shuffle_plugins.shuffler import Shuffler

_log = logging.getLogger("flwr")

_OPEN_EVALUATION = "Evaluation is NOT private: clients' evaluate replies reach the server as they are"
_NO_EVALUATION = "clients are asked nothing (evaluation=None)"


@dataclass(frozen=True, kw_only=True)
class RoundMean:
    """The mean of a round's clipped updates, (dim,), of how many reports it is, and how many apps failed."""

    sent: SentRound
    mean: Tensor
    reports: int
    failed: float | None


class HostStrategy(Strategy):
    """Runs another strategy, the inner one, whose rounds have one reply that stands for all clients."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {strategy!r}")
        check_strategy(strategy)
        self.strategy = strategy
        self._arrays: ArrayRecord | None = None
        self._done = 0

    @property
    def arrays(self) -> ArrayRecord | None:
        """The model after the last released round, also if the budget ended the run; None before one."""
        return self._arrays

    def _begin_run(self, grid: Grid, initial_arrays: ArrayRecord, *, num_rounds: int) -> Grid:
        """Find out what was done before; the grid of the run's rounds."""
        raise NotImplementedError

    def _end_run(self) -> None:
        """A round that was cut off after it was sent counts."""
        raise NotImplementedError

    @override
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
        """Train as :meth:`flwr.serverapp.strategy.Strategy.start`, or the inner strategy's own, does, each
        round shuffled.

        If the ledger has a checkpoint of this model, the run goes on after it: ``num_rounds`` counts the
        rounds before it as well, and ``initial_arrays`` gives only names, shapes and types.

        Raises:
            PrivacyBudgetExhausted: before a round that could exceed the budget; the model is in
                :attr:`arrays`.
            TimeoutError: if fewer than ``population`` clients connect in time.
            WrongRecipients: if the inner strategy samples on its own.
            ClientsRefused: if client after client answers by an error; the text has the reasons.
            LedgerError: if the ledger's budget is of another app, or of a model with other arrays.
        """
        self._arrays, self._done = None, 0
        shuffled = self._begin_run(grid, initial_arrays, num_rounds=num_rounds)
        done = self._done
        if done and done < num_rounds:
            _log.info("Going on after round %d; the rounds below are counted from there", done)
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
            self._end_run()
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


class ShuffleStrategy(HostStrategy):
    """Trains with another strategy, the inner one, on updates that were randomised and shuffled.

    Wrap a strategy, put a ``ShuffleMod`` first among the client app's mods, and call :meth:`start` as usual.
    The inner strategy gets one reply in each round: the current model moved by the unbiased mean of the
    shuffled reports, with weight 1. docs/guides/flower.md is the manual.

    Every ε is certified, for replace-one neighbours, and says against which :class:`Adversary` it holds. It
    assumes that the shuffle works; the stage's ``trust`` says who must be trusted for that.

    Args:
        strategy: the inner strategy. It must write to every node that it is shown (``fraction_train=1.0``).
        randomizer: name of a mechanism, which needs ``local_epsilon`` and ``clipping_norm``; or a
            :class:`MechanismSpec`; or a :class:`~shuffle_plugins.mechanisms.PrivateSum` whose reports must be
            summed: its ``cohort`` is the fewest reports of a round, and every round is charged for so many.
        local_epsilon: ε0 of one report: what a client spends in a round if nobody is trusted.
        clipping_norm: radius of the ball that updates are clipped to, in the mechanism's norm.
        sampling: who takes part: :class:`FixedSize`, :class:`Cyclic`, :class:`Poisson` or
            :class:`SelfSampling`.
        population: fewest clients that must be connected for a round to start. Each round draws from all that
            are connected, and is accounted for with their number.
        minimum_reports: fewest clients whose reports are released; by default 80 % of what can be expected.
            The budget is checked before anything is sent, as if the round had so few (if clients sample
            themselves: as if a fifth dropped out), and again before release if it cost more.
        updates: what clients report on, and how they prepare it; all arrays of floating-point numbers unless
            set.
        shuffler: a stage, or a shuffler in this process; by default a stage in this process, which for a sum
            is a :class:`SummingStage`.
        delta: δ of every ε, below 1/``population``; a larger one is used, with a warning.
        max_epsilon: the budget, against the adversary ``budget_against``.
        ledger: where rounds are recorded: a :class:`BudgetLedger`, or the path of one, whose model is then
            ``"model"``; or an accountant, in this process alone, which is the default. With a ledger a run
            that was killed goes on from its last completed round. A relative path is in the folder of the
            SuperLink, in a simulation where the first ``flwr run`` was started.
        evaluation: what clients are asked about a model: nothing, whatever the inner strategy would; a
            :class:`PrivateEvaluation`; or ``"raw"``, what the inner strategy asks, whose replies are NOT
            private.
        waiting: how long to wait for clients and service nodes.

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
        randomizer: str | MechanismSpec | PrivateSum,
        local_epsilon: float | None = None,
        clipping_norm: float | None = None,
        sampling: ClientSampling,
        population: int,
        minimum_reports: int | None = None,
        updates: Updates | None = None,
        shuffler: ShuffleStage | Shuffler | None = None,
        delta: float,
        max_epsilon: float | None = None,
        budget_against: Adversary = Adversary.MODEL_OBSERVER,
        ledger: BudgetLedger | FederatedAccountant | str | os.PathLike[str] | None = None,
        evaluation: PrivateEvaluation | Literal["raw"] | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        super().__init__(strategy)
        mechanism = mechanism_of(randomizer, local_epsilon=local_epsilon, clipping_norm=clipping_norm)
        updates = updates or Updates()
        self.settings = Settings(
            mechanism=mechanism,
            sampling=sampling,
            population=population,
            minimum_reports=minimum_reports,
            stage=stage_of(shuffler, mechanism=mechanism),
            delta=delta,
            max_epsilon=max_epsilon,
            adversary=budget_against,
            updates=updates,
            waiting=waiting or Waiting(),
            evaluation=evaluation,
        )
        self._record = SpendingRecord(ledger, settings=self.settings)
        self._rounds = Rounds(self.settings, record=self._record)
        self._failures = Failures()
        self._assumed: tuple[str, ...] = ()  # beside the trust that the settings ask for
        self._terms = UpdateTerms(
            clipping_norm=None if updates.adaptive_clipping is None else float(mechanism.radius),
            max_examples=updates.max_examples,
            examples_key=weight_key(strategy),
        )

    @property
    def clipping_norm(self) -> float:
        """What updates of the coming round are clipped to, in the mechanism's norm."""
        return self._terms.clipping_norm or self.settings.mechanism.radius

    @property
    def minimum_reports(self) -> int:
        """Fewest reports with which a round is released."""
        return self.settings.fewest_reports

    @property
    def accountant(self) -> FederatedAccountant:
        """The accountant of the rounds so far."""
        return self._record.accountant

    def spending(self, delta: float | None = None) -> FederatedSpending:
        """What all rounds cost, against each adversary; by default at the strategy's δ."""
        return self.accountant.spending(self.settings.delta if delta is None else delta)

    def get_epsilon(self, delta: float) -> float:
        """The certified ε against the adversary of the budget."""
        return self.accountant.epsilon(delta, adversary=self.settings.adversary, lower=False).upper

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The certified ε against the adversary of the budget, in Flower's own form."""
        delta = self.settings.delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.accountant.num_rounds,
            accounting_method=f"shuffle-{self.accountant.method}, against {self.settings.adversary}",
        )

    def state_dict(self) -> Any:
        """The accountant's state, for a checkpoint of your own; with a ledger it is not needed."""
        return self.accountant.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on with the rounds of :meth:`state_dict`; ValueError for a state older than what is recorded
        here, or if the run has a ledger.
        """
        self._record.restore(state)

    @override
    def _begin_run(self, grid: Grid, initial_arrays: ArrayRecord, *, num_rounds: int) -> Grid:
        stage, ledger = self.settings.stage, self._record.ledger
        if isinstance(grid, ShuffleGrid) and grid.stage is not stage:
            raise ValueError("this grid shuffles by another stage: give the plain grid, or the same stage")
        shuffled = grid if isinstance(grid, ShuffleGrid) else ShuffleGrid(grid, stage=stage)
        self._record.reload()
        # What an earlier start() of this object knew is of other clients, of another model, and of no use.
        self._failures = Failures()
        self._rounds = Rounds(self.settings, record=self._record, num_rounds=num_rounds)
        if ledger is not None:
            ledger.claim(app=str(grid.run.fab_id), layout=Layout.of(initial_arrays).digest)
            self._resume(ledger, initial_arrays)
        shuffled.open()
        if self._done >= num_rounds:
            _log.warning(
                "Nothing to train: the ledger has all %d rounds of this model already (%s). Ask for more "
                "(num_rounds), or name another ledger or model to begin again",
                self._done,
                _place(ledger),
            )
        return shuffled

    @override
    def _end_run(self) -> None:
        self._record.settle()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw a cohort, let the inner strategy write to it, and record the round; nothing for too few."""
        server_round += self._done
        cohort = self._rounds.draw(grid, step="configure_train")
        if not cohort:
            return []
        messages = messages_of(
            self.strategy, server_round=server_round, arrays=arrays, config=config, grid=grid, cohort=cohort
        )
        self._rounds.begin(messages, server_round=server_round, asked=self._terms)
        return messages

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record what the round cost, then give its mean to the inner strategy.

        The metrics have ``reports``, ``epsilon-observer`` and ``epsilon-server``; with 1,000 numbers that are
        trained or more also ``failed``, the noisy share of the last rounds' reports whose app failed.
        """
        del server_round
        found = self._mean(replies)
        if found is None:
            return None, None
        arrays, metrics = self._aggregated(found.sent, found.mean)
        self._keep(found.sent, arrays)
        metrics = self._with_spending(found.sent, metrics, found.reports)
        if found.failed is not None:
            metrics["failed"] = found.failed
        return arrays, metrics

    def _mean(self, replies: Iterable[Message]) -> RoundMean | None:
        """The clipped updates' mean, once the round's cost is recorded; None if nothing is released."""
        received = self._rounds.receive(replies)
        if received is None:
            return None
        sent, total = received
        terms, mechanism = sent.instruction.update, sent.invitation.mechanism
        mean, share = terms.read(sent.mean(total), mechanism)
        adaptive = self.settings.updates.adaptive_clipping
        if share is not None and adaptive is not None:
            norm = adaptive.moved(terms.clipping_norm or 0.0, share=share)
            self._terms = replace(terms, clipping_norm=norm)
            _log.info(
                "aggregate_train: %.0f %% were within the clipping norm; it is now %.3g", 100 * share, norm
            )
        mean, failed = self._failures.read(mean, terms.mark(sent.instruction.token, mechanism))
        return RoundMean(sent=sent, mean=mean, reports=total.reports, failed=failed)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """What clients are asked about the model; nothing beyond the budget."""
        server_round += self._done
        asked = self.settings.evaluation
        if asked == "raw":
            return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        if asked is None or server_round % asked.every:
            return []
        cohort = self._rounds.draw(grid, step="configure_evaluate")
        if not cohort:
            return []
        messages = evaluation_messages(
            self.strategy, server_round=server_round, arrays=arrays, config=config, cohort=cohort
        )
        try:
            self._rounds.begin(messages, server_round=server_round, asked=asked)
        except PrivacyBudgetExhausted as exhausted:
            _log.warning("configure_evaluate: left out, as %s", exhausted)
            return []
        return messages

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What clients answered, put together: of a :class:`PrivateEvaluation` the mean of each metric, with
        the number of reports and each ε as in training.
        """
        if self.settings.evaluation == "raw":
            return self.strategy.aggregate_evaluate(server_round + self._done, replies)
        received = None if self.settings.evaluation is None else self._rounds.receive(replies)
        if received is None:
            return None
        sent, total = received
        self._record.complete(sent.instruction.token, checkpoint=None)
        told = record_of(sent.instruction.metrics, sent.mean(total), reports=total.reports)
        return self._with_spending(sent, told, total.reports)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy!r}, {self.settings!r})"

    def _resume(self, ledger: BudgetLedger, initial: ArrayRecord) -> None:
        """Go on from the ledger's last checkpoint, if it has one."""
        checkpoint = ledger.last_checkpoint()
        if checkpoint is None:
            return
        state = ModelState.from_bytes(checkpoint.data)
        if Layout.of(state.arrays) != Layout.of(initial):
            raise ValueError(
                "the ledger's checkpoint is of a model with other arrays; give this model another name "
                "(model=…) or another ledger"
            )
        restore_strategy(self.strategy, state.strategy)
        if state.clipping_norm is not None and self.settings.updates.adaptive_clipping is not None:
            self._terms = replace(self._terms, clipping_norm=state.clipping_norm)
        self._arrays = state.arrays
        self._done = checkpoint.server_round

    def _aggregated(self, sent: SentRound, mean: Tensor) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the mean."""
        moved = sent.layout.shifted(sent.arrays, mean)
        reply = synthetic_reply(self.strategy, moved, key=sent.arrays_key)
        arrays, metrics = self.strategy.aggregate_train(sent.instruction.server_round, [reply])
        return None if arrays is None else typed_alike(arrays, sent.arrays), metrics

    def _keep(self, sent: SentRound, arrays: ArrayRecord | None) -> None:
        """Save what a round released with what the next process needs."""
        checkpoint = None
        if arrays is not None and self._record.ledger is not None:
            state = strategy_state(self.strategy)
            checkpoint = ModelState(arrays, state, self._terms.clipping_norm).to_bytes()
        self._record.complete(sent.instruction.token, checkpoint=checkpoint)
        self._arrays = self._arrays if arrays is None else arrays

    def _with_spending(self, sent: SentRound, metrics: MetricRecord | None, reports: int) -> MetricRecord:
        """The metrics, with the number of reports and what was spent so far."""
        found = MetricRecord() if metrics is None else metrics
        found["reports"] = reports
        found.update(self._record.told())
        _log.info("%s: %d reports; %s", sent.step, reports, self._record)
        return found

    @override
    def summary(self) -> None:
        """Log what protects the clients and what was spent, then the inner strategy's summary."""
        self._log_protection()
        self.strategy.summary()

    def _log_protection(self) -> None:
        settings, mechanism, spent = self.settings, self.settings.mechanism, self.accountant.num_rounds
        budget = "none"
        if settings.max_epsilon is not None:
            budget = f"ε ≤ {settings.max_epsilon:g} against {settings.adversary}"
        lines = [
            f"Randomizer: {mechanism.name}, ε0 = {mechanism.local_epsilon:g}: {self._clipping()}",
            f"Sampling: {settings.sampling} of at least {settings.population} clients",
            f"The cohort is larger than the population: with {settings.population} clients all are invited, "
            "and sampling earns nothing"
            if isinstance(settings.sampling, FixedSize) and settings.sampling.cohort > settings.population
            else None,
            f"Fewest reports: {settings.fewest_reports}",
            f"Budget: {budget}, δ = {settings.delta:g}, replace-one neighbours",
            f"Recorded: {_place(self._record.ledger)}",
            f"Spent: {self._record} ({spent} rounds)" if spent else None,
            delta_warning(settings.delta, population=settings.population),
            _OPEN_EVALUATION if settings.evaluation == "raw" else None,
            f"Evaluation: {_NO_EVALUATION}" if settings.evaluation is None else None,
            None
            if needs_one_reply(self.strategy)
            else "The inner strategy's own aggregate_train gets one reply, the mean of all reports",
            *(f"Trust: {each}" for each in trust_of(settings)),
        ]
        _log.info("\t├──> Shuffle-model differential privacy:")
        for line in lines:
            if line is not None:
                _log.info("\t│\t├── %s", line)

    def statement(self, *, delta: float | None = None, unit: Unit = Unit.CLIENT) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the rounds so far; ``print`` it.

        ``unit`` is what a client stands for, ``"user"`` if each is one person with all data of theirs.
        """
        settings, ledger = self.settings, self._record.ledger
        warnings = [_OPEN_EVALUATION] if settings.evaluation == "raw" else []
        if self._record.under_way is not None:
            warnings.append("a round is under way, and is charged the most that it can cost")
        kept = "in memory only" if ledger is None else f"in a ledger as the model {ledger.model!r}"
        return self._record.statement(
            delta=delta,
            subject=f"federated training by flwr_shuffle, recorded {kept}",
            unit=unit,
            trust=(*trust_of(settings), *self._assumed),
            clipping=self._clipping(),
            accesses=tuple(self._accesses()),
            warnings=warnings,
        )

    def _clipping(self) -> str:
        mechanism, updates = self.settings.mechanism, self.settings.updates
        moves = ", which moves with a private bit of every report" if self._terms.clipping_norm else ""
        what, each = "its whole update", updates.records_per_client
        if each > 1:
            drawn = updates.samples_per_client
            what = f"the update of each of {drawn} records, drawn in secret from its {each},"
        ball = f"a ball of radius {self.clipping_norm:.6g} in the norm of {mechanism.name}"
        return f"each client clips {what} to {ball}{moves}"

    def _accesses(self) -> Iterator[DataAccess]:
        evaluation, durable = self.settings.evaluation, self._record.ledger is not None
        cover, detail = Cover.COVERED, _NO_EVALUATION
        if evaluation == "raw":
            cover, detail = Cover.NOT_COVERED, _OPEN_EVALUATION
        elif evaluation is not None:
            detail = f"rounds of their own, reporting {', '.join(map(repr, evaluation.metrics))}"
        yield DataAccess(what="evaluation on clients", cover=cover, detail=detail)
        if self._terms.max_examples is not None:
            yield DataAccess(
                what="numbers of examples, as weights",
                cover=Cover.COVERED,
                detail="they stay on the clients, and move updates within the ball",
            )
        for what in (
            "data of the server's own, in evaluate_fn or the inner strategy",
            "other messages that clients' operators let the app answer (shuffle-allow-…)",
        ):
            yield DataAccess(what=what, cover=Cover.UNKNOWN, detail="not covered")
        others = "all that are in its ledger" if durable else "those whose accountant was given to this run"
        yield DataAccess(
            what="other runs that train this model",
            cover=Cover.COVERED if durable else Cover.UNKNOWN,
            detail=f"covered are {others}",
        )


def _later(metrics: dict[int, MetricRecord], rounds: int) -> dict[int, MetricRecord]:
    return {server_round + rounds: record for server_round, record in metrics.items()}


def _place(ledger: BudgetLedger | None) -> str:
    if ledger is None:
        return "in memory only, forgotten after this run"
    return f"{ledger.path}, model {ledger.model!r}"
