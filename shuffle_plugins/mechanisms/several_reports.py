"""All that a client sends in a round in which it reports several times."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_plugins.accounting import Adversary, Sampling, SeveralReportsRound, ShuffleRound
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.private_sum import PrivateSum


@dataclass(frozen=True, slots=True)
class SeveralReports:
    """What all reports of a client cost together, for accountants and ledgers; it makes none.

    Attributes:
        mechanism: makes each report.
        reports_per_client: s, how many a client that takes part sends.

    Raises:
        ValueError: if ``reports_per_client`` is no whole number from 1 on.
    """

    mechanism: PrivateSum
    reports_per_client: int

    def __post_init__(self) -> None:
        checks.whole("reports_per_client", self.reports_per_client)

    @property
    def name(self) -> str:
        """That of the mechanism whose reports are put together."""
        return self.mechanism.name

    @property
    def local_epsilon(self) -> float:
        """ε0 of all reports together, s·ε0."""
        return self.reports_per_client * self.mechanism.local_epsilon

    @property
    def local_delta(self) -> float:
        """δ0 of all reports together, s·δ0."""
        return self.reports_per_client * self.mechanism.local_delta

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> SeveralReportsRound:
        """The round for an accountant, as :meth:`PrivateSum.round`; ``cohort`` counts clients.

        Raises:
            ValueError: if several reports of this mechanism are not accounted, or the numbers contradict
                each other.
        """
        one = self.mechanism.round(
            population=population, cohort=cohort, sampling=sampling, adversary=adversary
        )
        if type(one) is not ShuffleRound:
            raise ValueError(
                f"several reports per client are accounted for shuffled reports, and a round of "
                f"{self.name!r} is a {type(one).__name__}: take a one-message mechanism with δ0 = 0, such as "
                "'privunit-g' or 'laplace'"
            )
        return SeveralReportsRound.of(one, reports_per_client=self.reports_per_client)
