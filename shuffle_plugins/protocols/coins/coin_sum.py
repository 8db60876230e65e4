"""Sums whose noise is fair coins that every client adds to its own messages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Adversary, PrivacyTarget, Sampling, SumRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.mechanisms import CountRange
from shuffle_plugins.protocols.coins.calibration import calibrated_coins
from shuffle_plugins.protocols.coins.sampling import (
    COINS_AT_ONCE,
    DISTANCE,
    MOST_COINS,
    RATIO,
    drawn_range,
    heads,
)
from shuffle_plugins.protocols.lattices import Lattice
from shuffle_plugins.protocols.shuffle_protocol import check_clips
from shuffle_plugins.protocols.tally import LabelledSum, Tally
from shuffle_plugins.randomness import Randomness, secure


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinSum(LabelledSum):
    """Each client rounds its datum to a lattice and adds ``coins`` fair coins to every coordinate.

    Its messages are labelled bits: span + coins of them per coordinate, of which x̂_j − lowest + heads are
    ones. The shuffler mixes everybody's; what is left is one count per coordinate (:meth:`tally`). So a
    client's report is its counts. Cheu, Joseph, Mao, Peng 2022, Algorithm 1, at p = ½, which gives the most
    noise per message.

    Attributes:
        cohort: n, how many clients take part in one sum, at least 2.
        honest_fraction: share of the clients that are counted on to toss their coins; the guarantee holds
            whatever the others send or do not send.
        levels: g, lattice steps per radius, or per interval.
        coins: b, fair coins per client and coordinate.
        lattice: how data become integers.

    Raises:
        ValueError: if a field is out of range, or the honest coins are too few to cover anybody.
    """

    lattice_type: ClassVar[type[Any]]

    levels: int
    coins: int
    lattice: Lattice = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [each.name for each in fields(self.lattice_type)]
        lattice = self.lattice_type(**{name: getattr(self, name) for name in names})
        object.__setattr__(self, "lattice", lattice)
        for name in names:  # a radius of 1 becomes 1.0
            object.__setattr__(self, name, getattr(lattice, name))
        LabelledSum.__post_init__(self)
        checks.whole("coins", self.coins)
        if self.cohort * self.coins > MOST_COINS:
            raise ValueError(
                f"{self.coins:,} coins from each of {self.cohort:,} clients are more than can be drawn, "
                f"{MOST_COINS:,}: ask for less noise, a larger ε or δ, or a larger overhead"
            )
        _ = self.round()

    @classmethod
    def calibrated(
        cls,
        *,
        cohort: int,
        epsilon: float,
        delta: float,
        num_steps: int = 1,
        population: int | None = None,
        honest_fraction: float = 1.0,
        participation: float | None = None,
        overhead: float = 0.02,
        **data: Any,
    ) -> Self:
        """The protocol with the fewest messages whose certified ε at δ is at most ``epsilon``.

        Args:
            cohort: as the field of this name.
            epsilon: target for all rounds together, replace-one.
            delta: δ of the target.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``cohort`` of them without replacement.
            honest_fraction: as the field of this name.
            participation: probability with which each client adds its data, by a secret coin of its own; see
                :meth:`round`.
            overhead: share of variance that may be spent on rounding and on the cover, beyond what the
                Gaussian mechanism needs; less costs more messages.
            data: the fields that say what clients hold: ``dim`` and ``radius``, ``upper``, or ``categories``.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        return calibrated_coins(
            PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps),
            lattice=lambda levels: cls.lattice_type(levels=levels, **data),
            build=lambda levels, coins: cls(
                cohort=cohort, levels=levels, coins=coins, honest_fraction=honest_fraction, **data
            ),
            cohort=cohort,
            population=population,
            honest_fraction=honest_fraction,
            participation=participation,
            overhead=overhead,
        )

    # -- what it costs ----------------------------------------------------------------------------------

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participation: float | None = None,
    ) -> SumRound:
        """As :meth:`SummingProtocol.round`, or with secret participation.

        Args:
            population, cohort, sampling, adversary: as there.
            participation: probability with which each client adds its data, by a secret coin of its own. The
                others add the zero vector, in the same way; all add their coins. It counts against everybody
                who sees the sum alone. None if all add their data.

        Raises:
            ValueError: if the numbers contradict each other, or too few honest coins are left.
        """
        present = self.participants(population=population, cohort=cohort, sampling=sampling)
        return SumRound(
            sensitivity=self.lattice.sensitivity,
            attained=self.lattice.attained,
            trials=present.honest * self.coins,
            coin_distance=DISTANCE,
            # Whether drawn for all clients at once, in so many parts, or by each for itself.
            coin_ratio=RATIO * present.reports * (1 + self.cohort * self.coins // COINS_AT_ONCE),
            dim=self.lattice.size,
            population=present.population,
            cohort=present.reports,
            sampling=present.sampling,
            adversary=adversary,
            participation=participation,
            norm=None if participation is None else self.lattice.norm_bound,
        )

    def secret_round(self, *, answered: int, participation: float) -> SumRound:
        """The round of those who answer, each adding data with that probability; see :meth:`round`.

        Raises:
            ValueError: as :meth:`round`.
        """
        return self.round(cohort=answered, participation=participation)

    @property
    def noise_variance(self) -> float:
        """Variance of the coins in one coordinate of the sum, in squared units of the data."""
        return self.cohort * self.coins / 4 * self.lattice.step**2

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖²: the coins' noise, and rounding."""
        rounding = self.cohort * self.lattice.rounding_variance * self.lattice.step**2
        return self.lattice.size * (self.noise_variance + rounding)

    @property
    def labels(self) -> int:
        """Coordinates of a sum, each under its label."""
        return self.lattice.size

    @property
    def messages_per_coordinate(self) -> int:
        """Bits under one label from one client."""
        return self.lattice.span + self.coins

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: its number of ones in each coordinate."""
        size = self.lattice.size
        counts = FieldLayout(self.messages_per_coordinate.bit_length(), size)
        return ReportLayout(self.name, size, (counts,))

    @property
    def counts(self) -> CountRange:
        """A client's ones in each coordinate: its datum, and as few or many coins as can be drawn."""
        low, high = drawn_range(self.coins)
        return CountRange(self.lattice.size, low, high + self.messages_per_coordinate - self.coins)

    # -- what is done -----------------------------------------------------------------------------------

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each client's number of ones per coordinate, in [0, messages_per_coordinate].

        ``clip`` must be true: a sum always clips. Otherwise as :meth:`Reporter.randomize`.
        """
        check_clips(clip)
        source = secure(randomness)
        values = self.lattice.encode(x, randomness=source)
        coins = heads(self.coins, values.numel(), randomness=source).reshape(values.shape)
        return self.layout.reports(values - self.lattice.lowest + coins.to(values.device))

    def _sum(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        ones, count = self._ones(total), self._number(total, reports)
        return self.lattice.in_units(ones.double() - count * (self.coins / 2 - self.lattice.lowest))

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Encoded data and their offset added up, int64 (size,) on the CPU; see :meth:`Summation.share`."""
        total = self.lattice.encoded_sum(x, randomness=secure(randomness))
        return total - (len(x) if isinstance(x, Tensor) else x.num_rows) * self.lattice.lowest

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor:
        """Heads among the coins of all clients, int64 (size,) on the CPU: one draw for the whole sum."""
        return heads(self.cohort * self.coins, self.lattice.size, randomness=randomness)
