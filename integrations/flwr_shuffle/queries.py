"""Queries of clients' data, without a model: each is a round of its own, and one reply stands for all."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message, MessageType, MetricRecord, RecordDict

# Flower exports this constant only from a private module.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from typing_extensions import override

from flwr_shuffle.grids import ShuffleGrid, ShuffleStage
from flwr_shuffle.messages import copied, type_of
from flwr_shuffle.metrics import Metric, MetricKind, errors_of, metrics_of, radius_of, record_of, size_of
from flwr_shuffle.rounds import Rounds, SpendingRecord
from flwr_shuffle.settings import FixedSize, Settings, mechanism_of, stage_of, trust_of
from shuffle_plugins.accounting import (
    Cover,
    DataAccess,
    FederatedAccountant,
    FederatedSpending,
    PrivacyStatement,
    Unit,
)
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import PrivateSum, SumSpec
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import DecoyVectorSum, LaplaceVectorSum, VectorSum, WindowedSum
from shuffle_plugins.shuffler import Shuffler

_log = logging.getLogger("flwr")

PRIVACY_KEY, ERRORS_KEY = "privacy", "standard_errors"  # of the records beside the answers


class QueryGrid(ShuffleGrid):
    """A grid whose ``query`` messages are answered privately, by clients with a ``ShuffleMod``.

    Messages of type ``query`` that a script gives to :meth:`send_and_receive` together are one query. What
    each client's app returns as a :class:`~flwr.app.MetricRecord` is brought into public ranges, and goes
    through the stage, limits and ledgers of a round of training. One reply comes back in place of all, with
    a record of the same form: of counts how many clients hold each, of a mean the mean. ``"standard_errors"``
    has the noise's deviation in each (of quantiles in the share of clients below; by decoys it is for one
    number of each client, and lists add to it), and ``"privacy"`` has ``reports``, ``epsilon-observer`` and
    ``epsilon-server`` as in training. With fewer answers than ``cohort`` there is no reply. Other messages
    pass as they are. docs/guides/queries.md is the manual.

    Every ε is certified, for replace-one neighbours: all that one client holds is exchanged. Whom a script
    writes to is not drawn here, so sampling earns nothing.

    Args:
        metrics: what is told of the numbers that the app returns, by their name: ``(low, high)`` is the range
            of a :class:`Mean`; :class:`Counts`, :class:`Bins`, :class:`Quantiles`.
        cohort: fewest clients that must answer; every query is charged for so many.
        epsilon: what ``num_queries`` queries may cost together: of the sums that keep to it the one of least
            noise is built, for a shuffler that with decoys.
        max_epsilon: budget of all queries, and of what else is in the ledger.
        randomizer: in place of ``epsilon``: the name of a mechanism of one report, which is shuffled and
            needs ``local_epsilon``; or a :class:`~shuffle_plugins.mechanisms.PrivateSum`, for the length and
            radius of these metrics.
        honest_fraction: share of the clients that follow the protocol and do not help the adversary; of a
            :class:`~shuffle_plugins.mechanisms.PrivateSum` always its own.
        shuffler, ledger: as of :class:`ShuffleStrategy`. With its ledger, or accountant, training and queries
            have one budget: before each round, and each query, what the other spent is read from the ledger.
            What :attr:`accountant` and :meth:`spending` tell is as of the last one.
        record: name of the record of answers.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from flwr_shuffle import Counts, InProcessGrid
        >>> grid = InProcessGrid(ClientApp(), num_nodes=100)
        >>> asked = QueryGrid(grid, {"smokes": Counts()}, cohort=100, epsilon=1.0, delta=1e-5)
        >>> asked.spending().num_rounds
        0
    """

    def __init__(
        self,
        grid: Grid,
        metrics: Mapping[str, MetricKind | tuple[float, float]],
        *,
        cohort: int,
        delta: float,
        epsilon: float | None = None,
        num_queries: int = 1,
        max_epsilon: float | None = None,
        randomizer: str | PrivateSum | None = None,
        local_epsilon: float | None = None,
        honest_fraction: float = 1.0,
        shuffler: ShuffleStage | Shuffler | None = None,
        ledger: BudgetLedger | FederatedAccountant | str | os.PathLike[str] | None = None,
        record: str = "query_results",
    ) -> None:
        self._metrics = metrics_of(metrics)
        if (epsilon is None) == (randomizer is None):
            raise ValueError("give one of epsilon, for a sum, and randomizer")
        if epsilon is None and num_queries != 1:
            raise ValueError("num_queries goes with epsilon, which so many queries may cost together")
        if isinstance(randomizer, str):
            unit = mechanism_of(randomizer, local_epsilon=local_epsilon, clipping_norm=1.0)
            norm = unit.build(dim=size_of(self._metrics)).norm
            radius = radius_of(self._metrics, norm)
            spec = mechanism_of(randomizer, local_epsilon=local_epsilon, clipping_norm=radius)
        elif local_epsilon is not None:
            raise ValueError("local_epsilon goes with the name of a randomizer")
        elif randomizer is not None:
            spec = mechanism_of(randomizer, local_epsilon=None, clipping_norm=None)
            _check_fits(randomizer, self._metrics)
            own = getattr(randomizer, "honest_fraction", 1.0)
            if honest_fraction not in (1.0, own):
                raise ValueError(
                    f"the noise of this sum is made for an honest_fraction of {own:g}: build the sum with "
                    f"honest_fraction={honest_fraction:g}"
                )
        else:
            assert epsilon is not None
            spec = _best_sum(
                self._metrics,
                shuffled=shuffler is not None and not getattr(shuffler, "adds_up", False),
                cohort=cohort,
                epsilon=epsilon,
                delta=delta,
                num_steps=num_queries,
                honest_fraction=honest_fraction,
            )
        stage = stage_of(shuffler, mechanism=spec)
        super().__init__(grid, stage=stage)
        share = honest_fraction if spec.cohort is None else 1.0  # the noise of a sum provides for its own
        self.settings = Settings(
            mechanism=spec,
            sampling=FixedSize(cohort, honest_fraction=share),
            population=cohort,
            minimum_reports=cohort,
            stage=stage,
            delta=delta,
            max_epsilon=max_epsilon,
        )
        self._record = SpendingRecord(ledger, settings=self.settings)
        self._rounds = Rounds(self.settings, record=self._record)
        self._key = record
        if self._record.ledger is not None:
            self._record.ledger.claim(app=str(grid.run.fab_id), layout=None)
        self.open()

    @property
    def accountant(self) -> FederatedAccountant:
        """The accountant of the queries so far, and of what else is in the ledger."""
        return self._record.accountant

    def spending(self, delta: float | None = None) -> FederatedSpending:
        """What all of it cost, against each adversary; by default at the grid's δ."""
        return self.accountant.spending(self.settings.delta if delta is None else delta)

    @override
    def is_private(self, message: Message) -> bool:
        return super().is_private(message) or _is_query(message)

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask a query and wait: one reply with what was found, or none if nothing may be told.

        BudgetExhausted, before anything is sent, for a query that the budget does not allow; ClientsRefused
        if client after client answers by an error.
        """
        sent = list(messages)
        if not any(map(_is_query, sent)):
            return super().send_and_receive(sent, timeout=timeout)
        if not self._rounds.choose(self, [message.metadata.dst_node_id for message in sent]):
            return []
        contents = [message.content for message in sent]
        copies = {id(content): copied(content) for content in contents}
        for message in sent:
            message.content = copies[id(message.content)]
        try:
            number = self.accountant.num_rounds + 1
            self._rounds.begin(sent, server_round=number, asked=self._metrics)
            received = self._rounds.receive(super().send_and_receive(sent, timeout=timeout))
        finally:
            self._record.settle()  # a query that was cut off after it was sent counts
            for message, content in zip(sent, contents, strict=True):
                message.content = content
        if received is None:
            return []
        asked, total = received
        self._record.complete(asked.instruction.token, checkpoint=None)
        reports, mechanism = total.reports, asked.invitation.mechanism
        # of one report, or of a sum of as many clients as its cohort, each of which adds as much noise
        variance = mechanism.worst_variance * reports / (mechanism.cohort or 1)
        if isinstance(mechanism, DecoyVectorSum) and not mechanism.signed:
            # The part of worst_variance that a client lacks which returns one number for each name: then only
            # the metric that its report is on is random. Of lists the bin is, too.
            variance -= reports * mechanism.radius
        _log.info("query: %d reports; %s", reports, self._record)
        content = RecordDict(
            {
                self._key: record_of(self._metrics, asked.mean(total), reports=reports),
                ERRORS_KEY: errors_of(self._metrics, math.sqrt(variance / mechanism.dim), reports=reports),
                PRIVACY_KEY: MetricRecord({"reports": reports, **self._record.told()}),
            }
        )
        return [Message(content, dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.QUERY)]

    def statement(self, *, delta: float | None = None, unit: Unit = Unit.CLIENT) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the queries so far, as of a ShuffleStrategy."""
        settings, durable = self.settings, self._record.ledger is not None
        names = ", ".join(repr(metric.name) for metric in self._metrics)
        return self._record.statement(
            delta=delta,
            subject=f"queries by flwr_shuffle for {names}",
            unit=unit,
            trust=tuple(trust_of(settings)),
            clipping=f"each client's answer is in a ball of radius {settings.mechanism.radius:.6g} in the "
            f"norm of {settings.mechanism.name}, as ranges and bins are public",
            accesses=(
                DataAccess(
                    what="messages that clients' operators let the app answer (shuffle-allow-…)",
                    cover=Cover.UNKNOWN,
                    detail="not covered",
                ),
                DataAccess(
                    what="other runs on these clients' data",
                    cover=Cover.COVERED if durable else Cover.UNKNOWN,
                    detail="covered are all in its ledger"
                    if durable
                    else "covered are those of its accountant",
                ),
            ),
        )


def _is_query(message: Message) -> bool:
    return type_of(message) == MessageType.QUERY


def _signed(metrics: tuple[Metric, ...]) -> bool:
    return any(metric.kind.size == 1 for metric in metrics)  # all others count, from 0 up


def _check_fits(mechanism: PrivateSum, metrics: tuple[Metric, ...]) -> None:
    if isinstance(mechanism, WindowedSum):
        raise ValueError("a query tells a sum of its own, which a WindowedSum hides: take a VectorSum")
    size, radius = size_of(metrics), radius_of(metrics, mechanism.norm)
    if mechanism.dim != size or mechanism.radius < radius:
        raise ValueError(
            f"these metrics are vectors of {size} numbers, in a ball of radius {radius:.6g} in the norm "
            f"{mechanism.norm}: build the sum with dim={size} and radius={radius!r}"
        )
    if isinstance(mechanism, DecoyVectorSum) and _signed(metrics) and not mechanism.signed:
        raise ValueError("a mean, and Counts() of one thing, need a DecoyVectorSum with signed=True")


def _best_sum(metrics: tuple[Metric, ...], *, shuffled: bool, **target: Any) -> Spec:
    """The sum of least noise for these metrics and this target, of which messages may be ``shuffled``."""
    dim = size_of(metrics)
    if shuffled:
        radius, signed = radius_of(metrics, DecoyVectorSum.norm), _signed(metrics)
        return SumSpec(protocol=DecoyVectorSum.calibrated(dim=dim, radius=radius, signed=signed, **target))
    found: list[PrivateSum] = [
        kind.calibrated(dim=dim, radius=radius_of(metrics, kind.norm), **target)
        for kind in (LaplaceVectorSum, VectorSum)
    ]
    return SumSpec(protocol=min(found, key=lambda each: each.worst_variance))
