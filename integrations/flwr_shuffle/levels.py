"""Levels of ε0 among which clients choose by their limits, and training by clients of all levels at once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from typing_extensions import override

from flwr_shuffle.grids import (
    AnonymousReply,
    GroupGrid,
    InMemoryStage,
    ShuffleGrid,
    Total,
    WrappedGrid,
    arriving,
    at_once,
    is_shuffled,
    valid_sum,
)
from flwr_shuffle.messages import LEVELS_KEY
from flwr_shuffle.rounds import Rounds, connected
from flwr_shuffle.settings import FixedSize, Invitation
from flwr_shuffle.strategy import HostStrategy, RoundMean, ShuffleStrategy
from shuffle_plugins.accounting import FederatedRound, GroupsRound
from shuffle_plugins.accounting.rounds.groups import ONE_BIT
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.mechanisms import LocalRandomizer
from shuffle_plugins.planning import expected_noise, one_encoding_factor, weigh_groups
from shuffle_plugins.shuffler import InMemoryShuffler, Refusal

_log = logging.getLogger("flwr")

_CHOICE = (
    "who is in which group is taken to be public, must not follow from anybody's data, and stays as it is "
    "for as long as the ledgers last: who changes group pays in both"
)


def grids_by_level(
    grid: Grid, levels: Sequence[float], *, timeout: float | None = 60.0
) -> dict[float, GroupGrid]:
    """Ask every client which of the offered ε0 is the largest that its limits allow; a grid for each group.

    A ``ShuffleMod`` answers by its limits alone, which do not follow from its data: who is in which group is
    public. Nothing is trained and nothing spent, and what a client takes part in is still checked against
    its limits each time. Clients that allow none of the levels, or do not answer, are in no group.

    A :class:`GroupsStrategy` asks by itself. Otherwise train each group by a :class:`ShuffleStrategy` of its
    level on its grid: its members are hidden among themselves, as the server knows who is in which group.

    Args:
        levels: values of ε0.
        timeout: seconds to wait for answers; None for ever.

    Raises:
        ValueError: if there is no level, or one is out of range.
    """
    offered = sorted({checks.local_epsilon(level, name="levels") for level in levels})
    if not offered:
        raise ValueError("offer at least one level")
    taken = _levels_taken(grid, offered, timeout=timeout)
    return {
        offer: GroupGrid(grid, members=[node for node, level in taken.items() if level == offer])
        for offer in offered
    }


def _levels_taken(grid: Grid, levels: Sequence[float], *, timeout: float | None) -> dict[int, float | None]:
    """Of each node that answers the level that it takes, None for none."""
    asked = RecordDict({LEVELS_KEY: ConfigRecord({"levels": list(levels)})})
    sent = [Message(asked, node, MessageType.TRAIN) for node in grid.get_node_ids()]
    taken: dict[int, float | None] = {}
    for reply in arriving(grid, sent, timeout=timeout):
        if reply.has_content():
            record = reply.content.get(LEVELS_KEY)
            level = record.get("level") if isinstance(record, ConfigRecord) else None
            known = isinstance(level, float) and level in levels
            taken[reply.metadata.src_node_id] = cast(float, level) if known else None
    counts = Counter(taken.values())
    told = ", ".join(f"{counts[level]} at local_epsilon={level:g}" for level in levels)
    none = len(sent) - sum(counts[level] for level in levels)
    _log.info("levels: %s; %d nodes take none", told, none)
    return taken


class _OneGroup(GroupGrid):
    """The nodes of one group; whoever looks for them finds those that have connected since."""

    def __init__(self, grid: Grid, *, ask: Callable[[], None]) -> None:
        super().__init__(grid, members=())
        self._ask = ask

    @override
    def get_node_ids(self) -> list[int]:
        self._ask()
        return super().get_node_ids()


class _GroupsGrid(WrappedGrid):
    """All nodes, of whom each is asked until it answers which level it takes, and the grids of the groups."""

    def __init__(self, grid: Grid, *, levels: Iterable[float], timeout: float) -> None:
        super().__init__(grid)
        self.members = {level: _OneGroup(grid, ask=self._ask_new) for level in levels}
        self.shuffled: dict[float, ShuffleGrid] = {}
        self._timeout = timeout
        self._asked: set[int] = set()
        self._silent: set[int] = set()

    def ask(self) -> None:
        """Ask who is new, and, once in a round, who has not answered, as that takes the whole timeout."""
        self._asked -= self._silent
        self._silent = set()
        self._ask_new()

    def _ask_new(self) -> None:
        new = set(self.get_node_ids()) - self._asked
        if not new:
            return
        self._asked |= new
        taken = _levels_taken(GroupGrid(self._grid, members=new), sorted(self.members), timeout=self._timeout)
        self._silent |= new - taken.keys()
        for node, level in taken.items():
            if level is not None:
                self.members[level].members.add(node)

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and wait; one reply to the round of each group, of those that were sent one."""
        sent = list(messages)
        if not any(map(is_shuffled, sent)):
            return super().send_and_receive(sent, timeout=timeout)
        rounds = [
            (
                self.shuffled[level],
                [message for message in sent if message.metadata.dst_node_id in group.members],
            )
            for level, group in self.members.items()
        ]
        return at_once([(own, mine) for own, mine in rounds if mine], timeout=timeout)


@dataclass(frozen=True)
class _OneEncoding(FixedSize):
    """The draw of one group of several that hide each other, charged for the fewest reports of each."""

    groups: tuple[tuple[float, int], ...] = ()

    @override
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        mechanism = invitation.mechanism
        assert isinstance(mechanism, LocalRandomizer)
        everybody = sum(count for _, count in self.groups)
        cost = GroupsRound(
            local_epsilon=mechanism.local_epsilon,
            groups=self.groups,
            population=everybody,
            cohort=everybody,
            mechanism=mechanism.name,
            blanket=mechanism.blanket(),
            sampling=Sampling.FULL,
            channel_fixed=True,
        )
        return FederatedRound(
            observer=cost, server=cost, local_epsilon=mechanism.local_epsilon, local_delta=0.0
        )


class GroupsStrategy(HostStrategy):
    """Trains one model by clients that chose an ε0 each, all of which report in the same rounds.

    Each client takes the largest of the levels that its limits allow, once in a run and independently of its
    data. In a round each group reports at its own ε0, all at the same time, and the inner strategy gets the
    weighted mean of the groups' means. The server knows which report is of which group, so that each group
    is hidden among its own members (``docs/proofs/accounting.md``, section 3e), and has its own accountant,
    ledger, budget and statement: those of its :class:`ShuffleStrategy`. A group whose budget is spent sits
    out; with the last one the run ends.

    Args:
        groups: a strategy for each level, all around the same inner strategy, without ``evaluation``.
            Ledgers are one for each, or of one file with a model's name for each.
        weigh: ``"precision"`` weighs each group by one over the variance of its noise: the least noise,
            unbiased for a mean that groups have in common. ``"clients"`` weighs by numbers of connected
            clients: unbiased for the mean of all clients, whatever the groups hold. Groups without a result
            in a round are left out of it.
        one_encoding: adds the reports of all groups up as they are, so that all clients hide each other: a
            :class:`~shuffle_plugins.accounting.GroupsRound`. For ``"linf-coordinate"``, ``"l1-hadamard"`` or
            ``"binary-rr"`` in all groups, :class:`FixedSize` sampling, and a shuffler in this process. A
            group then weighs by its reports times tanh(ε0/2), and ``weigh`` is left out. Each round is
            charged for ``minimum_reports`` of each group, and that clients are drawn hides nobody; without so
            many it has no result. The first budget that is spent ends the run.
    """

    def __init__(
        self,
        groups: Sequence[ShuffleStrategy],
        *,
        weigh: Literal["precision", "clients"] = "precision",
        one_encoding: bool = False,
    ) -> None:
        if not groups or any(each.strategy is not groups[0].strategy for each in groups):
            raise ValueError("give a ShuffleStrategy for each level, all around the same inner strategy")
        super().__init__(groups[0].strategy)
        self.groups: dict[float, ShuffleStrategy] = {
            checks.local_epsilon(each.settings.mechanism.local_epsilon): each for each in groups
        }
        if len(self.groups) < len(groups):
            raise ValueError("two groups have the same ε0: make them one")
        if any(each.settings.evaluation is not None for each in groups):
            raise ValueError("a group asks for no evaluation: leave evaluation out, or ask by a QueryGrid")
        if any(each.settings.updates.trained != groups[0].settings.updates.trained for each in groups):
            raise ValueError("all groups train the same arrays: give one Updates(trained=…) to all")
        ledgers = [each._record.ledger for each in groups]
        budgets = {(ledger.path, ledger.model) for ledger in ledgers if ledger is not None}
        if len(budgets) not in (0, len(groups)):
            raise ValueError(
                "give every group a ledger of its own, as BudgetLedger(path, model=…) with a name for each, "
                "or none of them one"
            )
        if len({id(each.accountant) for each in groups}) < len(groups):
            raise ValueError("two groups have the same accountant: give each its own")
        if weigh not in ("precision", "clients"):
            raise ValueError(f'weigh must be "precision" or "clients", got {weigh!r}')
        if one_encoding and weigh == "clients":
            raise ValueError(
                'one_encoding: a group weighs by its reports times tanh(ε0/2); leave weigh="clients" out'
            )
        self.weigh, self.one_encoding = weigh, one_encoding
        if one_encoding:
            self._check_one_encoding()
        for group in groups:
            group._assumed = (_CHOICE,)
        self._spent: set[float] = set()  # levels whose budget is

    def get_epsilon(self, delta: float, *, level: float | None = None) -> float:
        """The certified ε of the group of a level, against the adversary of its budget; by default the
        largest of all groups.

        Raises:
            ValueError: if there is no group of the level.
        """
        if level is not None and level not in self.groups:
            raise ValueError(f"there is no group of local_epsilon={level!r}, but of {list(self.groups)}")
        wanted = self.groups.values() if level is None else [self.groups[level]]
        return max(group.get_epsilon(delta) for group in wanted)

    def _check_one_encoding(self) -> None:
        settings = [group.settings for group in self.groups.values()]
        kinds = {(each.mechanism.name, each.mechanism.radius) for each in settings}
        if len(kinds) > 1 or settings[0].mechanism.name not in ONE_BIT:
            raise ValueError(
                f"one_encoding: take one of {', '.join(sorted(ONE_BIT))} for all groups, at one radius"
            )
        for each in settings:
            if type(each.sampling) is not FixedSize or each.sampling.honest_fraction < 1:
                raise ValueError("one_encoding: take FixedSize sampling, without honest_fraction")
            if type(each.stage) is not InMemoryStage:
                raise ValueError("one_encoding: take a shuffler in this process, as without shuffler=")
            if each.updates.samples_per_client > 1:
                raise ValueError("one_encoding: clients report once in a round; leave samples_per_client out")

    def _mix(self, *, num_rounds: int) -> None:
        """Charge the groups for rounds in which the reports of all hide each other, in this run alone."""
        fewest = tuple((level, group.settings.fewest_reports) for level, group in self.groups.items())
        for group in self.groups.values():
            cohort = cast(FixedSize, group.settings.sampling).cohort
            mixed = replace(group.settings, sampling=_OneEncoding(cohort, groups=fewest))
            group._rounds = Rounds(mixed, record=group._record, num_rounds=num_rounds)

    @override
    def _begin_run(self, grid: Grid, initial_arrays: ArrayRecord, *, num_rounds: int) -> Grid:
        groups = list(self.groups.values())
        waiting = groups[0].settings.waiting
        together = _GroupsGrid(grid, levels=self.groups, timeout=waiting.answer_timeout)
        needed = sum(group.settings.population for group in groups)
        connected(grid, needed=needed, enough=needed, waiting=waiting)
        together.ask()
        for level, group in self.groups.items():
            group._arrays, group._done = None, 0
            shuffled = group._begin_run(together.members[level], initial_arrays, num_rounds=num_rounds)
            assert isinstance(shuffled, ShuffleGrid)
            together.shuffled[level] = shuffled
        if self.one_encoding:
            self._mix(num_rounds=num_rounds)
        latest = max(groups, key=lambda group: group._done)
        if latest._record.ledger is not None:
            # each group's resume overwrote the inner strategy's state: the newest must be the last
            latest._resume(latest._record.ledger, initial_arrays)
        self._arrays, self._done, self._spent = latest.arrays, latest._done, set()
        for group in groups:
            group._done = self._done
        return together

    @override
    def _end_run(self) -> None:
        for group in self.groups.values():
            group._end_run()
            group._rounds = Rounds(group.settings, record=group._record)

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw a cohort of each group, let the inner strategy write to it, and record each group's round."""
        assert isinstance(grid, _GroupsGrid)
        grid.ask()
        sent: dict[float, list[Message]] = {}
        exhausted: PrivacyBudgetExhausted | None = None
        for level, group in self.groups.items():
            if level in self._spent:
                continue
            try:
                messages = group.configure_train(server_round, arrays, config, grid.shuffled[level])
            except PrivacyBudgetExhausted as reason:
                exhausted = reason
                self._leave_out(level, reason)
            else:
                sent[level] = messages
        if self.one_encoding and not all(sent.get(level) for level in self.groups):
            for level in sent:  # without all groups nothing is sent, and nothing spent
                self.groups[level]._rounds.withdraw()
            sent = {}
        if exhausted is not None and not sent:
            raise exhausted
        return [message for messages in sent.values() for message in messages]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record what the round cost each group, then give the mean of the groups' means to the inner
        strategy. The metrics have ``reports-ε0``, ``epsilon-observer-ε0`` and ``epsilon-server-ε0`` of each,
        and ``failed-ε0`` where a :class:`ShuffleStrategy` has ``failed``.
        """
        del server_round
        received = list(replies)
        if self.one_encoding:
            self._add_up(received)
        found: dict[float, RoundMean] = {}
        for level, group in self.groups.items():
            own = [reply for reply in received if group._rounds.awaits(reply)]
            try:
                mean = group._mean(own)
            except PrivacyBudgetExhausted as reason:  # it cost more than was planned; nothing is released
                self._leave_out(level, reason)
                continue
            if mean is not None:
                found[level] = mean
        if not found:
            return None, None
        first = next(iter(found))
        moved = found[first].mean if self.one_encoding else self._weighed(found)
        arrays, metrics = self.groups[first]._aggregated(found[first].sent, moved)
        told = MetricRecord() if metrics is None else metrics
        for level, mean in found.items():
            self.groups[level]._keep(mean.sent, arrays)
            told[f"reports-{level:g}"] = mean.reports
            if mean.failed is not None:
                told[f"failed-{level:g}"] = mean.failed
        for level, group in self.groups.items():
            told.update(group._record.told(f"-{level:g}"))
            _log.info("aggregate_train: local_epsilon=%g: %s", level, group._record)
        self._arrays = self._arrays if arrays is None else arrays
        return arrays, told

    def _add_up(self, received: Sequence[Message]) -> None:
        """Give each group's reply the mean of all groups' reports, or nothing if a group has too few."""
        replies: dict[float, AnonymousReply] = {}
        for reply in received:
            for level, group in self.groups.items():
                if group._rounds.awaits(reply):
                    replies[level] = cast(AnonymousReply, reply)
        kept = {
            level: reply.anonymous.reports
            for level, reply in replies.items()
            if reply.anonymous.reports is not None
        }
        changed: dict[float, dict[str, Any]] = {}
        if kept:
            decoder = self.groups[min(kept)]._rounds.mechanism
            counts = {level: valid_sum(decoder, reports).reports for level, reports in kept.items()}
            if all(counts.get(level, 0) >= group.minimum_reports for level, group in self.groups.items()):
                together = InMemoryShuffler().shuffle_reports(Reports.concat(list(kept.values())))
                factor = one_encoding_factor(
                    decoder.name, groups=list(counts.items()), decoded_at=decoder.local_epsilon
                )
                mean = factor * valid_sum(decoder, together).sum
                changed = {
                    level: {"total": Total(sum=mean * count, reports=count)}
                    for level, count in counts.items()
                }
        everybody = {name for reply in replies.values() for name in reply.anonymous.participants}
        for level, reply in replies.items():
            reply.anonymous = replace(
                reply.anonymous,
                reports=None,
                participants=tuple(sorted(everybody)),
                **changed.get(level, {"refusal": Refusal.UNDER_MINIMUM}),
            )

    def _weighed(self, found: Mapping[float, RoundMean]) -> torch.Tensor:
        """The mean of the groups' means, (dim,); the weights follow from public numbers alone."""
        weights = weigh_groups(
            [
                expected_noise(mean.sent.invitation.mechanism, cohort=mean.reports).noise ** 2
                for mean in found.values()
            ],
            clients=[mean.sent.invitation.candidates for mean in found.values()]
            if self.weigh == "clients"
            else None,
        )
        combined = weights.combine([mean.mean.to(torch.float64) for mean in found.values()])
        assert isinstance(combined, torch.Tensor)
        return combined

    def _leave_out(self, level: float, reason: PrivacyBudgetExhausted) -> None:
        self._spent.add(level)
        _log.warning("the group of local_epsilon=%g sits out from here on: %s", level, reason)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Clients are asked nothing."""
        return []

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Clients are asked nothing."""
        return None

    @override
    def summary(self) -> None:
        """Log what protects the clients of each group, and what was spent; then the inner one's summary."""
        for group in self.groups.values():
            group._log_protection()
        if self.one_encoding:
            _log.info("\t│\t├── Reports of all groups are added up in one encoding, and hide each other")
        self.strategy.summary()
