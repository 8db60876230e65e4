"""What several commands ask: rounds as the options describe them, and what the bounds say of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import typer

from shuffle_plugins import accounting, mechanisms
from shuffle_plugins.cli import output, tables
from shuffle_plugins.cli.options import GENERIC

# Whether a blanket depends on the dimension is found by trying these.
_PROBE_DIMS = (1, 2, 1_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedRounds:
    """Rounds as the options describe them, apart from ε0 and their number, which some commands solve for.

    Attributes:
        population: clients there are, n.
        cohort: reports shuffled together, k; only under full participation it may be left out.
        sampling: how the cohort is chosen, a value of :class:`~shuffle_plugins.accounting.Sampling`.
        adversary: who watches, a value of :class:`~shuffle_plugins.accounting.Adversary`.
        method: how the certified interval composes, ``"pld"`` or ``"rdp"``.
        mechanism: the randomizer whose own blanket is used, or ``"generic"``.
        dim: length of a client's vector; needed where the blanket depends on it.
        local_delta: δ0 of one report, only with the generic blanket.
        records_per_client: m, the records that each client has.
        samples_per_client: s, the records that a client that takes part reports on.
    """

    population: int
    cohort: float | None
    sampling: str
    adversary: str
    method: accounting.Method
    mechanism: str = GENERIC
    dim: int | None = None
    local_delta: float = 0.0
    records_per_client: int = 1
    samples_per_client: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """From a command's parameters by name, ``typer.Context.params``; others are left out."""
        return cls(**{f.name: parameters[f.name] for f in fields(cls) if f.name in parameters})

    def participants(self) -> tuple[int, float]:
        """(n, k) to account for; under full participation both are n."""
        if self.sampling != "full":
            if self.cohort is None:
                raise typer.BadParameter(f"--cohort is needed under {self.sampling} sampling")
            return self.population, self.cohort
        if self.cohort not in (None, self.population):
            raise typer.BadParameter(
                f"under full sampling everybody takes part, {self.population:,} clients and not "
                f"{self.cohort:,.12g}: leave out --cohort; if the same few take part in every round, they "
                "are the --population"
            )
        return self.population, self.population

    def blanket_factory(self) -> Callable[[float], accounting.Blanket] | None:
        """The mechanism's blanket as a function of ε0; nothing for the generic one."""
        if self.mechanism == GENERIC:
            if self.dim is not None:
                raise typer.BadParameter("generic takes no --dim: leave it out, or name a --mechanism")
            return None
        if self.local_delta > 0:
            raise typer.BadParameter("--local-delta is for --mechanism generic")
        mechanisms.registry.check_known(self.mechanism, *mechanisms.ONE_MESSAGE)
        return self._own_blanket

    def _own_blanket(self, local_epsilon: float) -> accounting.Blanket:
        name, dim = self.mechanism, self.dim
        if dim is not None:
            own = mechanisms.blanket(name, local_epsilon=local_epsilon, dim=dim)
            if own.local_epsilon != local_epsilon:
                raise typer.BadParameter(
                    f"reports of {name} are (ε0, δ0)-LDP: use --mechanism generic with --local-delta"
                )
            return own
        found = {mechanisms.blanket(name, local_epsilon=local_epsilon, dim=probe) for probe in _PROBE_DIMS}
        if len(found) > 1:
            raise typer.BadParameter(
                f"--dim is needed: how much a report of {name} tells depends on the length of the vector or "
                "the number of categories"
            )
        return found.pop()

    def blanket(self, local_epsilon: float) -> accounting.Blanket | None:
        """The mechanism's blanket at one ε0; nothing for the generic one."""
        factory = self.blanket_factory()
        return None if factory is None else factory(local_epsilon)

    def round(self, local_epsilon: float) -> accounting.ShuffleRound:
        """One such round, for the accountant."""
        population, cohort = self.participants()
        clients = accounting.ShuffleRound(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            sampling=accounting.Sampling(self.sampling),
            adversary=accounting.Adversary(self.adversary),
            mechanism=self.mechanism,
            blanket=self.blanket(local_epsilon),
            local_delta=self.local_delta,
            channel_fixed=True,
        )
        if self.records_per_client == self.samples_per_client == 1:
            return clients
        return accounting.SampledRecordsRound.of(
            clients,
            records_per_client=self.records_per_client,
            samples_per_client=self.samples_per_client,
        )

    def whole_client(self, local_epsilon: float) -> accounting.Round | None:
        """The same round for neighbours that differ in all records of a client; None if it is not accounted.

        Also None where clients have one record each: then there is no other question.
        """
        one_record = self.round(local_epsilon)
        if not isinstance(one_record, accounting.SampledRecordsRound):
            return None
        if self.samples_per_client == 1:
            return one_record.clients
        if one_record.sampling not in accounting.SeveralReportsRound.SAMPLINGS:
            return None
        return accounting.SeveralReportsRound.of(
            one_record.clients, reports_per_client=self.samples_per_client
        )

    def compare(self, *, local_epsilon: float, num_steps: int, delta: float) -> accounting.Comparison:
        """The project's own bounds on that many rounds; ``beside`` of the answer adds published ones."""
        return accounting.compare(
            shuffle_round=self.round(local_epsilon),
            num_steps=num_steps,
            delta=delta,
            method=self.method,
            published=(),
        )


def check_one_report(mechanism: str) -> None:
    """Refuse a sum of many messages, and a name that no mechanism has.

    Raises:
        ValueError: if it is either.
    """
    mechanisms.registry.check_known(mechanism, *mechanisms.ONE_MESSAGE)
    if mechanisms.kind_of(mechanism) is mechanisms.Kind.SUMS:
        raise ValueError(
            f"{mechanism} is a sum of many messages per client; this command takes mechanisms with one "
            "report per client (`shuffle-plugins mechanisms` lists them)"
        )


def show_answer(answer: accounting.Comparison, *, published: Sequence[str]) -> None:
    """Print the certified interval at once, then the table of all bounds."""
    output.show(tables.verdict(answer))
    sys.stdout.flush()
    with output.progress("published bounds") as progress:
        answer = answer.beside(published, progress=progress)
    output.show(tables.bounds_table(answer, width=output.width()))


def warnings(answer: accounting.Comparison) -> list[str]:
    """What makes the answer's ε worth little."""
    return output.delta_warnings(answer.interval.delta, population=answer.shuffle_round.population)


def answer_json(answer: accounting.Comparison) -> dict[str, Any]:
    """The round, its certified interval and every bound, as plain values."""
    asked, interval = answer.shuffle_round, answer.interval
    sampled = (
        {
            "records_per_client": asked.records_per_client,
            "samples_per_client": asked.samples_per_client,
        }
        if isinstance(asked, accounting.SampledRecordsRound)
        else {}
    )
    return {
        "mechanism": asked.mechanism,
        "local_epsilon": asked.local_epsilon,
        "local_delta": asked.local_delta,
        "population": asked.population,
        "cohort": asked.cohort,
        **sampled,
        "sampling": str(asked.sampling),
        "adversary": str(asked.adversary),
        "rounds": answer.num_steps,
        "delta": interval.delta,
        **output.interval_json(interval),
        "neighbouring_relation": interval.neighbouring_relation,
        "bounds": [asdict(bound) for bound in answer.bounds],
        "warnings": warnings(answer),
    }
