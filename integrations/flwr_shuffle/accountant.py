"""Certified accounting for Flower's own differentially private strategies and mods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from flwr.serverapp import (
    GaussianPrivacyEvent,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from shuffle_plugins.accounting import (
    CentralGaussianRound,
    EpsilonInterval,
    NeighbouringRelation,
    Sampling,
    ShuffleAccountant,
)
from shuffle_plugins.accounting.accountant import check_none_forgotten
from shuffle_plugins.core import checks

_BACKEND, _SCHEMA = "certified-pld", 1


class CertifiedAccountant:
    """A ``flwr.serverapp.PrivacyAccountant`` by exact privacy losses, in place of Flower's Rényi bound.

    Args:
        config: Flower's own. ``no-amplification`` and ``poisson`` have add-or-remove-one neighbours,
            ``without-replacement`` has replace-one ones.

    An event's ``noise_multiplier`` is the noise's deviation over the sensitivity: of updates clipped to C
    that is C under add-or-remove-one, which Flower's strategies pass, and 2C under replace-one.

    The server sees every update and is trusted: nothing here is shuffled. ε is certified from both sides,
    :meth:`epsilon_interval`; the protocol's methods give the upper end. Needs Flower 1.42.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self._config = config
        self._events: list[tuple[GaussianPrivacyEvent, int]] = []
        self._accountant = ShuffleAccountant()

    @property
    def config(self) -> PrivacyConfig:
        """The configuration, Flower's own, that this accountant was made with."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases were composed."""
        return sum(count for _, count in self._events)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Compose ``count`` equal releases, of the configuration's population."""
        self._accountant.step(self._round(event), num_steps=checks.whole("count", count))
        self._events.append((event, count))

    def epsilon_interval(self, delta: float | None = None) -> EpsilonInterval:
        """ε at ``delta``, by default the configuration's, from both sides, with its neighbouring relation."""
        return self._accountant.epsilon(self._config.target_delta if delta is None else delta)

    def get_epsilon(self, delta: float) -> float:
        """The least certified ε at ``delta``."""
        return self._accountant.epsilon(delta, lower=False).upper

    def get_delta(self, epsilon: float) -> float:
        """The least certified δ at ``epsilon``."""
        return self._accountant.delta(epsilon).upper

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """ε at ``delta``, by default the configuration's."""
        delta = self._config.target_delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.num_releases,
            accounting_method=_BACKEND,
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether ``count`` such releases would exceed ``max_epsilon``, by default the configuration's."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("give max_epsilon, here or in the PrivacyConfig")
        return self._accountant.would_exceed(
            self._round(event),
            target_epsilon=checks.number("max_epsilon", limit, above=0),
            delta=self._config.target_delta,
            num_steps=checks.whole("count", count),
        )

    def state_dict(self) -> dict[str, object]:
        """The events as plain values that JSON holds."""
        config = self._config
        return {
            "schema_version": _SCHEMA,
            "backend": _BACKEND,
            "config": _plain(config),
            "compositions": [{"event": asdict(event), "count": count} for event, count in self._events],
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Replace the events by saved ones; on any error this accountant stays as it was.

        ValueError if the state is damaged, of another backend or configuration, or does not go on from what
        is composed here.
        """
        if state.get("schema_version") != _SCHEMA or state.get("backend") != _BACKEND:
            raise ValueError(f"not a state of {type(self).__name__}")
        if state.get("config") != _plain(self._config):
            raise ValueError(
                "the state is of another PrivacyConfig: its ε would be another; use the one saved"
            )
        loaded = CertifiedAccountant(self._config)
        try:
            for each in state["compositions"]:  # type: ignore[attr-defined]
                loaded.compose(GaussianPrivacyEvent(**each["event"]), each["count"])
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the saved compositions are damaged: {error}") from error
        check_none_forgotten(loaded._events, self._events)
        self.__dict__.update(loaded.__dict__)

    def _round(self, event: GaussianPrivacyEvent) -> CentralGaussianRound:
        if event.population_size != self._config.population_size:
            raise ValueError(
                f"the event's population_size is {event.population_size}, the configuration's "
                f"{self._config.population_size}"
            )
        method, cohort = self._config.sampling_method, event.sample_size
        everybody = cohort == event.population_size
        if method is SamplingMethod.NO_AMPLIFICATION:
            sampling, cohort = Sampling.FULL, event.population_size
        elif method is SamplingMethod.POISSON:
            sampling = Sampling.POISSON
        else:
            sampling = Sampling.FULL if everybody else Sampling.WITHOUT_REPLACEMENT
        return CentralGaussianRound(
            noise_multiplier=event.noise_multiplier,
            population=event.population_size,
            cohort=cohort,
            sampling=sampling,
            neighbouring_relation=NeighbouringRelation(self._config.neighboring_relation.value),
        )


def _plain(config: PrivacyConfig) -> dict[str, object]:
    return {name: getattr(value, "value", value) for name, value in asdict(config).items()}
