"""A strategy that trains with any other of Flower's, on private updates, within a budget."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result, Strategy

# Flower has no public address for what its accountants answer.
from flwr.supercore.privacy_accounting import PrivacySpent
from torch import Tensor
from typing_extensions import override

from flwr_shuffle.grids import ShuffleGrid, Waiting
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
from flwr_shuffle.rounds import Rounds, SentRound, SpendingRecord
from flwr_shuffle.settings import ClientSampling, SelfSampling, Settings, mechanism_of, stage_of
from flwr_shuffle.stages import ShuffleStage
from flwr_shuffle.updates import Failures, Layout, PrivateEvaluation, Updates, UpdateTerms, record_of
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
from shuffle_plugins.mechanisms import MechanismSpec, PrivateSum, SumSpec
from shuffle_plugins.shuffler import Shuffler

_log = logging.getLogger("flwr")


class ShuffleStrategy(Strategy):
    """Trains with another strategy, the inner one, on updates that were randomised and shuffled.

    Wrap a strategy, put a ``ShuffleMod`` first among the client app's mods, and call :meth:`start` as usual.
    In each round the clients' updates are clipped to the mechanism's ball and randomised before they leave
    the client; the inner strategy gets one reply, the current model moved by the unbiased mean of the
    shuffled reports, with weight 1. What a round costs is recorded before the inner strategy sees it, and a
    round with too few reports is not released. docs/guides/flower.md is the manual.

    Every ε is certified, for replace-one neighbours, and says against which :class:`Adversary` it holds: who
    observes the models, for whom sampling amplifies; or the server, which knows who took part, and then it is
    the ε of the client that took part most often. Both assume that the shuffle works; the stage's ``trust``
    says who must be trusted for that. If nobody is trusted, a client's ε is the sum of its ε0.

    Args:
        strategy: FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi or your own. It must send one message
            to every node it is shown (``fraction_train=1.0``), and work with one reply. Flower's robust
            strategies, QFedAvg, the tree strategies and Flower's own differential privacy are refused.
        randomizer: name of a mechanism, see ``shuffle-plugins mechanisms``; or a :class:`MechanismSpec`; or a
            :class:`~shuffle_plugins.mechanisms.PrivateSum` whose reports must be summed, such as
            :class:`~shuffle_plugins.protocols.VectorSum`, in which the noise of all clients together protects
            each. The ``cohort`` of such a sum is the fewest reports of a round, and every round is charged as
            if no more came.
        local_epsilon: ε0 of one report in nats; only with a mechanism's name.
        clipping_norm: radius of the ball that updates are clipped to, in the mechanism's norm; only with a
            mechanism's name.
        sampling: who takes part: :class:`FixedSize`, :class:`Poisson` or :class:`SelfSampling`.
        population: fewest clients that must be connected for a round to start. Each round draws from all that
            are connected, and is accounted for with their number.
        minimum_reports: fewest clients whose reports are released, at least 2 and the shuffler's own
            minimum; by default 80 % of what can be expected (:meth:`ClientSampling.default_minimum`), which
            a fifth of the clients dropping out misses in half of all rounds: see the guide. The
            budget is checked before anything is sent, as if the round had so few (if clients sample
            themselves: as if a fifth dropped out), and again before release if it cost more.
        updates: what clients report on, and how they prepare it.
        shuffler: a stage, or a shuffler in this process; by default a stage in this process, which for a sum
            is a :class:`SummingStage`.
        delta: δ of every ε, in (0, 1); at most 1 / population is usual.
        max_epsilon: ε that must not be exceeded; None sets no budget.
        budget_against: the adversary against whom ``max_epsilon`` must hold.
        ledger: where rounds are recorded: a :class:`BudgetLedger`, or the path of one, whose model is then
            ``"model"``; or an accountant, in this process alone, which is the default. With a ledger a run
            that was killed goes on from its last completed round. A path is relative to the server's working
            folder, which in a deployment is the SuperLink's; it is logged.
        evaluation: what clients are asked about a model. None, the default, asks nothing, whatever the inner
            strategy would. A :class:`PrivateEvaluation` asks clients, drawn anew by ``sampling``, for metrics
            as randomised reports, shuffled by the same stage and charged to the same budget; an evaluation
            that the budget does not allow is left out. ``"raw"`` sends what the inner strategy sends: the
            replies are NOT private, and come from clients whose operators allow them
            (``shuffle-allow-evaluate=true``).
        waiting: how long to wait for clients.

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
        super().__init__()
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {strategy!r}")
        check_strategy(strategy)
        self.strategy = strategy
        mechanism = mechanism_of(randomizer, local_epsilon=local_epsilon, clipping_norm=clipping_norm)
        updates = Updates() if updates is None else updates
        self._settings = Settings(
            mechanism=mechanism,
            sampling=sampling,
            population=population,
            minimum_reports=minimum_reports,
            stage=stage_of(shuffler, mechanism=mechanism),
            delta=delta,
            max_epsilon=max_epsilon,
            adversary=budget_against,
            updates=updates,
            waiting=Waiting() if waiting is None else waiting,
            evaluation=evaluation,
        )
        if ledger is None:
            ledger = FederatedAccountant()
        elif not isinstance(ledger, (BudgetLedger, FederatedAccountant)):
            ledger = BudgetLedger(ledger)
        self._record = SpendingRecord(ledger, settings=self._settings)
        self._rounds = Rounds(self._settings, record=self._record)
        self._failures = Failures()
        self._arrays: ArrayRecord | None = None
        self._done = 0
        self._terms = UpdateTerms(
            clipping_norm=None if updates.adaptive_clipping is None else float(mechanism.radius),
            max_examples=updates.max_examples,
            examples_key=weight_key(strategy),
        )

    @property
    def arrays(self) -> ArrayRecord | None:
        """The model after the last released round, also if the budget ended the run; None before one."""
        return self._arrays

    @property
    def settings(self) -> Settings:
        """The checked settings of the run."""
        return self._settings

    @property
    def clipping_norm(self) -> float:
        """What updates of the coming round are clipped to, in the mechanism's norm."""
        return self._terms.clipping_norm or self._settings.mechanism.radius

    @property
    def minimum_reports(self) -> int:
        """Fewest reports with which a round is released."""
        return self._settings.fewest_reports

    @property
    def accountant(self) -> FederatedAccountant:
        """The accountant of the rounds so far."""
        return self._record.accountant

    def spending(self, delta: float | None = None) -> FederatedSpending:
        """What all rounds cost, against each adversary, with lower bounds; by default at the strategy's δ."""
        return self.accountant.spending(self._settings.delta if delta is None else delta)

    def statement(self, *, delta: float | None = None, unit: Unit = Unit.CLIENT) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the rounds so far; ``print`` it.

        A round under way is stated at the most that it can cost. ``unit`` is what a client stands for,
        ``"user"`` if each is one person with all data of theirs.
        """
        delta = self._settings.delta if delta is None else delta
        return statement_of(self._settings, self._record, delta=delta, unit=unit, terms=self._terms)

    def get_epsilon(self, delta: float) -> float:
        """The certified ε against the adversary of the budget."""
        return self.accountant.epsilon(delta, adversary=self._settings.adversary, lower=False).upper

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The certified ε against the adversary of the budget, in Flower's own form."""
        delta = self._settings.delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.accountant.num_rounds,
            accounting_method=f"shuffle-{self.accountant.method}, against {self._settings.adversary}",
        )

    def state_dict(self) -> Any:
        """The accountant's state, for a checkpoint of your own; with a ledger it is not needed."""
        return self.accountant.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on with the rounds of :meth:`state_dict`.

        Raises:
            ValueError: if it is not the state of an accountant, is older than what this strategy has
                recorded, or the run has a ledger.
        """
        self._record.restore(state)

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
        """Train as :meth:`flwr.serverapp.strategy.Strategy.start` does, each round shuffled.

        If the inner strategy has a ``start`` of its own, that one runs, with its own files, logs and
        checkpoints; its rounds are configured and aggregated here, and what it returns is returned. If the
        ledger has a checkpoint of this model, the run goes on after it: ``num_rounds`` counts the rounds
        before it as well, and ``initial_arrays`` gives only names, shapes and types.

        Raises:
            PrivacyBudgetExhausted: before a round that could exceed the budget; the model is in
                :attr:`arrays`.
            TimeoutError: if fewer than ``population`` clients connect in time.
            WrongRecipients: if the inner strategy samples on its own.
            ClientsRefused: if client after client answers by an error; the text has the reasons.
            LedgerError: if the ledger's budget is of another app, or of a model with other arrays.
        """
        stage = self._settings.stage
        if isinstance(grid, ShuffleGrid) and grid.stage is not stage:
            raise ValueError("this grid shuffles by another stage: give the plain grid, or the same stage")
        shuffled = grid if isinstance(grid, ShuffleGrid) else ShuffleGrid(grid, stage=stage)
        self._record.reload()
        self._arrays, self._done, self._failures = None, 0, Failures()  # of an earlier start() of this object
        self._rounds.start(num_rounds=num_rounds)
        self._record.claim(app=str(grid.run.fab_id), layout=Layout.of(initial_arrays).digest)
        self._resume(initial_arrays)
        shuffled.open()
        done = self._done
        if done >= num_rounds:
            _log.warning(
                "Nothing to train: the ledger has all %d rounds of this model already (%s). Ask for more "
                "(num_rounds), or name another ledger or model to begin again",
                done,
                self._record.where,
            )
        elif done:
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
            self._record.settle()  # a round that was cut off after it was sent counts
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

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw a cohort, let the inner strategy write to it, and record the round; called by Flower.

        No messages if fewer clients than ``minimum_reports`` were drawn: the round is left out.
        """
        server_round += self._done
        drawn = self._rounds.draw(grid, step="configure_train")
        if drawn is None:
            return []
        candidates, cohort = drawn
        messages = messages_of(
            self.strategy, server_round=server_round, arrays=arrays, config=config, grid=grid, cohort=cohort
        )
        self._rounds.begin(messages, server_round=server_round, candidates=candidates, terms=self._terms)
        return messages

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record what the round cost, then give its mean to the inner strategy; called by Flower.

        (None, None) if nothing is released. The metrics have ``reports``, ``epsilon-observer`` and
        ``epsilon-server``; with 1,000 numbers that are trained or more also ``failed``, the share of the
        reports of about ten rounds whose app failed, with noise.
        """
        del server_round
        received = self._rounds.receive(replies)
        if received is None:
            return None, None
        sent, total = received
        mean, share = sent.instruction.update.read(sent.mean(total), sent.invitation.mechanism)
        adaptive = self._settings.updates.adaptive_clipping
        if share is not None and adaptive is not None:
            norm = adaptive.moved(sent.instruction.update.clipping_norm or 0.0, share=share)
            self._terms = sent.instruction.update.at(norm)
            _log.info(
                "aggregate_train: %.0f %% were within the clipping norm; it is now %.3g", 100 * share, norm
            )
        mean, failed = self._failures.read(mean, sent.mark)
        arrays, metrics = self._released(sent, mean)
        metrics = self._with_spending(sent, metrics, total.reports)
        if failed is not None:
            metrics["failed"] = failed
        return arrays, metrics

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """What clients are asked about the model, by ``evaluation``; called by Flower."""
        server_round += self._done
        asked = self._settings.evaluation
        if asked == "raw":
            return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        if asked is None or server_round % asked.every:
            return []
        drawn = self._rounds.draw(grid, step="configure_evaluate")
        if drawn is None:
            return []
        candidates, cohort = drawn
        messages = evaluation_messages(
            self.strategy, server_round=server_round, arrays=arrays, config=config, cohort=cohort
        )
        try:
            self._rounds.begin(messages, server_round=server_round, candidates=candidates, evaluation=asked)
        except PrivacyBudgetExhausted as exhausted:
            _log.warning("configure_evaluate: left out, as %s", exhausted)
            return []
        return messages

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What clients answered, put together; called by Flower.

        Of a :class:`PrivateEvaluation` the mean of each metric, with ``reports``, ``epsilon-observer`` and
        ``epsilon-server`` as in training; None if nothing is released.
        """
        if self._settings.evaluation == "raw":
            return self.strategy.aggregate_evaluate(server_round + self._done, replies)
        if self._settings.evaluation is None:
            return None
        received = self._rounds.receive(replies)
        if received is None:
            return None
        sent, total = received
        self._record.complete(sent.instruction.token, checkpoint=None)
        return self._with_spending(sent, record_of(sent.instruction.metrics, sent.mean(total)), total.reports)

    @override
    def summary(self) -> None:
        """Log what protects the clients and what was spent, then the inner strategy's summary."""
        log_summary(
            self._settings,
            self._record,
            clipping_norm=self.clipping_norm,
            one_reply=needs_one_reply(self.strategy),
        )
        self.strategy.summary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy!r}, {self._settings!r})"

    def _resume(self, initial: ArrayRecord) -> None:
        """Go on from the ledger's last checkpoint, if it has one."""
        checkpoint = self._record.last_checkpoint()
        if checkpoint is None:
            return
        state = ModelState.from_bytes(checkpoint.data)
        if Layout.of(state.arrays) != Layout.of(initial):
            raise ValueError(
                "the ledger's checkpoint is of a model with other arrays; give this model another name "
                "(model=…) or another ledger"
            )
        restore_strategy(self.strategy, state.strategy)
        if state.clipping_norm is not None and self._settings.updates.adaptive_clipping is not None:
            self._terms = self._terms.at(state.clipping_norm)
        self._arrays = state.arrays
        self._done = checkpoint.server_round

    def _released(self, sent: SentRound, mean: Tensor) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the mean, saved with what the next process needs."""
        moved = sent.layout.shifted(sent.arrays, mean)
        reply = synthetic_reply(self.strategy, moved, key=sent.arrays_key)
        arrays, metrics = self.strategy.aggregate_train(sent.instruction.server_round, [reply])
        if arrays is None:
            self._record.complete(sent.instruction.token, checkpoint=None)
            return None, metrics
        arrays = typed_alike(arrays, sent.arrays)
        checkpoint = None
        if self._record.durable:
            state = strategy_state(self.strategy)
            checkpoint = ModelState(arrays, state, self._terms.clipping_norm).to_bytes()
        self._record.complete(sent.instruction.token, checkpoint=checkpoint)
        self._arrays = arrays
        return arrays, metrics

    def _with_spending(self, sent: SentRound, metrics: MetricRecord | None, reports: int) -> MetricRecord:
        """The metrics, with the number of reports and what was spent so far."""
        found = MetricRecord() if metrics is None else metrics
        found["reports"] = reports
        for key, adversary in (
            ("epsilon-observer", Adversary.MODEL_OBSERVER),
            ("epsilon-server", Adversary.SERVER),
        ):
            found[key] = self._record.spent(adversary)
        _log.info("%s: %d reports; %s", sent.step, reports, self._record)
        return found


def _later(metrics: dict[int, MetricRecord], rounds: int) -> dict[int, MetricRecord]:
    """Metrics by round, counted from the model's first round."""
    return {server_round + rounds: record for server_round, record in metrics.items()}


_log = logging.getLogger("flwr")


OPEN_EVALUATION = "Evaluation is NOT private: clients' evaluate replies reach the server as they are"


def log_summary(settings: Settings, record: SpendingRecord, *, clipping_norm: float, one_reply: bool) -> None:
    """Log what protects the clients of a run, the coming round's clipping norm, and what was spent.

    ``one_reply`` is whether the inner strategy is known to work with one reply.
    """
    drawn, each = settings.updates.samples_per_client, settings.updates.records_per_client
    on = f" on each of {drawn} of {each} records of a client" if each > 1 else ""
    budget = "none"
    if settings.max_epsilon is not None:
        budget = f"ε ≤ {settings.max_epsilon:g} against {settings.adversary}"
    lines = [
        f"Randomizer: {settings.mechanism.name}, ε0 = {settings.mechanism.local_epsilon:g}{on}",
        f"Clipping norm: {clipping_norm:g}",
        f"Sampling: {settings.sampling} of at least {settings.population} clients",
        f"Fewest reports: {settings.fewest_reports}",
        f"Assumed honest: {settings.sampling.honest_fraction:.0%} of the clients",
        f"Budget: {budget}, δ = {settings.delta:g}, replace-one neighbours",
        f"Recorded: {record.where}",
    ]
    if rounds := record.accountant.num_rounds:
        lines.append(f"Spent: {record} ({rounds} rounds)")
    if (shown := delta_warning(settings.delta, population=settings.population)) is not None:
        lines.append(shown)
    if settings.evaluation == "raw":
        lines.append(OPEN_EVALUATION)
    elif settings.evaluation is None:
        lines.append("Evaluation: clients are asked nothing (evaluation=None)")
    if not one_reply:
        lines.append("The inner strategy's own aggregate_train gets one reply, the mean of all reports")
    if (opened := open_participation(settings)) is not None:
        lines.append(opened)
    _log.info("\t├──> Shuffle-model differential privacy:")
    for line in lines:
        _log.info("\t│\t├── %s", line)
    _log.info("\t│\t└── Trust: %s", settings.stage.trust)


def open_participation(settings: Settings) -> str | None:
    """That clients' secret coins are open to this process; None if they are not, or nobody tosses any."""
    stage = settings.stage
    hidden = stage.hides_shares or (stage.analyzer_key and not stage.adds_up)
    if hidden or not isinstance(settings.sampling, SelfSampling):
        return None
    stages = "a stage that hides shares" if stage.adds_up else "a mix node"
    return f"Participation is open to this process: only {stages} hides it from the server"


def statement_of(
    settings: Settings, record: SpendingRecord, *, delta: float, unit: Unit, terms: UpdateTerms
) -> PrivacyStatement:
    """The privacy statement of a run; a round under way is stated at its highest cost."""
    warnings = []
    if settings.evaluation == "raw":
        warnings.append(OPEN_EVALUATION)
    if record.under_way:
        warnings.append("a round is under way, and is charged the most that it can cost")
    return PrivacyStatement.of(
        record.charged(),
        delta=delta,
        subject=f"federated training by flwr_shuffle, recorded {record.kept}",
        unit=unit,
        trust=tuple(_trust(settings)),
        clipping=_clipping(settings, terms),
        accesses=tuple(_accesses(settings, record, terms)),
        warnings=warnings,
        target_epsilon=settings.max_epsilon,
        target_delta=settings.delta,
        target_adversary=settings.adversary,
        packages=("torch", "flwr"),
    )


def _trust(settings: Settings) -> Iterator[str]:
    stage = settings.stage
    yield stage.trust
    opened = open_participation(settings)
    if opened is not None:
        yield opened
    if stage.analyzer_key and not stage.adds_up:
        if isinstance(settings.sampling, SelfSampling):
            yield (
                "the first mixer sees who sent a dummy, so that secret participation hides nobody from it; ε "
                "against a mixer that also reads the models is not stated"
            )
        else:
            yield (
                "a mixer that also reads the models learns no more than the server, whose ε holds against it"
            )
    yield "whoever submits the app is trusted with the code that runs on clients, mix nodes and aggregators"
    share: float | None = settings.sampling.honest_fraction
    if isinstance(settings.mechanism, SumSpec):
        share = getattr(settings.mechanism.protocol, "honest_fraction", None)
    counted = "an unknown share" if share is None else f"{share:.0%}"
    yield f"{counted} of the clients are counted on to follow the protocol and not to help the adversary"


def _clipping(settings: Settings, terms: UpdateTerms) -> str:
    mechanism = settings.mechanism
    norm = terms.clipping_norm or mechanism.radius
    moves = "" if terms.clipping_norm is None else ", which moves with a private bit of every report"
    ball = f"a ball of radius {norm:.6g} in the norm of {mechanism.name}"
    what = "its whole update"
    if settings.updates.records_per_client > 1:
        samples, records = settings.updates.samples_per_client, settings.updates.records_per_client
        what = f"the update of each of {samples} records, drawn in secret from its {records},"
    return f"each client clips {what} to {ball}{moves}"


def _accesses(settings: Settings, record: SpendingRecord, terms: UpdateTerms) -> Iterator[DataAccess]:
    asked, evaluation = "evaluation on clients", settings.evaluation
    if evaluation == "raw":
        yield DataAccess(what=asked, cover=Cover.NOT_COVERED, detail=OPEN_EVALUATION)
    elif evaluation is None:
        yield DataAccess(
            what=asked, cover=Cover.COVERED, detail="clients are asked nothing (evaluation=None)"
        )
    else:
        names = ", ".join(map(repr, evaluation.names))
        yield DataAccess(what=asked, cover=Cover.COVERED, detail=f"rounds of their own, reporting {names}")
    if terms.max_examples is not None:
        yield DataAccess(
            what="numbers of examples, as weights",
            cover=Cover.COVERED,
            detail="they stay on the clients, and move updates within the ball",
        )
    yield DataAccess(
        what="data of the server's own, in evaluate_fn or the inner strategy",
        cover=Cover.UNKNOWN,
        detail="not covered",
    )
    yield DataAccess(
        what="other messages that clients' operators let the app answer (shuffle-allow-…)",
        cover=Cover.UNKNOWN,
        detail="not covered",
    )
    others = (
        "all that are in its ledger" if record.durable else "those whose accountant was given to this run"
    )
    yield DataAccess(
        what="other runs that train this model",
        cover=Cover.COVERED if record.durable else Cover.UNKNOWN,
        detail=f"covered are {others}",
    )
