"""Windows of sums: weighted sums over rounds are seen, which the server solves for each round's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from typing_extensions import override

from shuffle_plugins.accounting import Adversary, Sampling
from shuffle_plugins.accounting.rounds.sums import Coefficients, WindowRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Dim, Radius
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.protocols.coins import CoinSum
from shuffle_plugins.protocols.draws import drawn_range, heads
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.randomness.sources import Randomness


@dataclass(frozen=True, kw_only=True)
class WindowedSum(CoinSum, PrivateSum):
    """The sum of clients' vectors, round after round, of which only windows are ever seen.

    In round t the sum Y_t = c_0·D_t + … + c_{b−1}·D_{t−b+1} + Z_t is opened, D_t the sum of the round's
    encoded vectors and Z_t that of its coins. Who opens it keeps the last b − 1 sums, as :class:`Windows`
    does, and the server solves for D_t (:class:`WindowSolver`): noise that is correlated over rounds, with no
    trusted server. A client may take part at most once in any b rounds in a row (``docs/proofs/sums.md``,
    "Windows").

    A report is 2·dim counts, from 0 up: those of the vector, and the heads less the fewest that are drawn.
    Only :class:`Windows` may read a total; :meth:`estimate` takes it for a series of one round.

    Attributes:
        cohort: the fewest clients of a round that is opened.
        coefficients: c_0, …, c_{b−1}, whole numbers (:func:`window_coefficients`).
    """

    name: ClassVar[str] = "windowed-sum"
    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"
    norm: ClassVar[Norm] = Norm.L2
    lattice_type: ClassVar[type[Any]] = FixedPoint

    dim: Dim
    radius: Radius = 1.0
    coefficients: Coefficients

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort * (sum(self.coefficients) * self.data_highest + self.coins_highest) >= 1 << 62:
            raise ValueError(
                "windows of so many clients exceed 2**62: use fewer levels or smaller coefficients"
            )

    @property
    def band(self) -> int:
        """b: how many rounds a window sums, and in how many rounds in a row a client takes part once."""
        return len(self.coefficients)

    @property
    def data_highest(self) -> int:
        """The largest count of a client's vector; the least is 0."""
        return self.lattice.span

    @property
    def coins_highest(self) -> int:
        """The largest count of a client's coins; the least is 0, for the fewest heads that are drawn."""
        fewest, most = drawn_range(self.coins)
        return most - fewest

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participation: float | None = None,
    ) -> WindowRound:
        """One participation of a client, for an accountant; arguments as of :meth:`SummingProtocol.round`.

        It is charged with the coins of the fewest clients that a window may have, ``self.cohort``, as its
        later windows are of clients that are not known yet, and nothing for being drawn.
        """
        if cohort is not None and cohort < self.cohort:
            raise ValueError(
                f"the windows after this one are promised the coins of {self.cohort} clients, and so is this "
                f"one: a round of {cohort} opens nothing"
            )
        found: Any = super().round(adversary=adversary, participation=participation)
        charged: WindowRound = found  # as _round says, of which the base knows no more than SumRound
        return charged

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> WindowRound:
        whole = super()._round(honest, participation, **who)
        return WindowRound(coefficients=self.coefficients, **vars(whole))

    @property
    @override
    def noise_variance(self) -> float:
        """Variance of the noise in one coordinate of a series' first sum, in squared units of the data."""
        return super().noise_variance / self.coefficients[0] ** 2

    # -- what clients send ------------------------------------------------------------------------------

    @property
    @override
    def size(self) -> int:
        return 2 * self.dim

    @property
    @override
    def messages_per_coordinate(self) -> int:
        return max(self.data_highest, self.coins_highest)

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.size, 0, self.messages_per_coordinate)

    @property
    @override
    def layout(self) -> ReportLayout:
        fields = (
            FieldLayout(most.bit_length(), self.dim) for most in (self.data_highest, self.coins_highest)
        )
        return ReportLayout(self.name, self.dim, tuple(fields))

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self._refuse_tallies()

    @override
    def tally(self, messages: Reports) -> NoReturn:
        self._refuse_tallies()

    def _refuse_tallies(self) -> NoReturn:
        raise ValueError(
            "whoever counts shuffled messages sees each round's sum without its coins: add reports up with "
            "total, and open Windows of it"
        )

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        values = self.lattice.encode(x, randomness=randomness).cpu() - self.lattice.lowest
        coins = heads(self.coins, values.numel(), randomness=randomness) - drawn_range(self.coins)[0]
        return self.layout.reports(values, coins.reshape(values.shape))

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        data = super().share(x, randomness=randomness)
        return torch.cat([data, torch.zeros_like(data)])

    @override
    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor:
        coins = super().common_noise(randomness=randomness) - self.cohort * drawn_range(self.coins)[0]
        return torch.cat([torch.zeros_like(coins), coins])

    @override
    def _read(self, reports: Reports) -> Tensor:
        self.layout.check(reports)
        found = []
        for part, most in zip(reports.fields, (self.data_highest, self.coins_highest), strict=True):
            counts = part.values.reshape(len(reports), self.dim).to(torch.int64)
            if counts.numel() and not (int(counts.min()) >= 0 and int(counts.max()) <= most):
                raise ValueError(f"a client sent a count outside [0, {most}]: leave its report out")
            found.append(counts)
        return torch.cat(found, dim=1)

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        return WindowSolver(self).solve(Windows(self).open(numbers), reports=reports)


class Windows:
    """The windows of a series, opened one after the other from totals, where one party may see these.

    It keeps the data counts of the last b − 1 rounds, and gives out windows alone.
    """

    def __init__(self, protocol: WindowedSum) -> None:
        self._protocol = protocol
        self._kept: deque[Tensor] = deque(maxlen=protocol.band - 1)  # the last round's first

    def open(self, total: Tensor) -> Tensor:
        """The window of this round, int64 (dim,), from its total, int64 (2·dim,)."""
        if total.shape != (self._protocol.size,) or total.is_floating_point():
            raise ValueError(f"a total is {self._protocol.size} whole numbers, got {tuple(total.shape)}")
        data, coins = total.to(torch.int64).cpu().reshape(2, -1)
        window: Tensor = self._protocol.coefficients[0] * data + coins
        for weight, earlier in zip(self._protocol.coefficients[1:], self._kept, strict=False):
            window += weight * earlier
        self._kept.appendleft(data.clone())
        return window


class WindowSolver:
    """Solves the windows of a series for each round's sum, forward, in O(b·dim) memory.

    Of the estimates of one series it is prefix sums whose noise is small: late windows take back what early
    ones had too much. Start a new one with every series.
    """

    def __init__(self, protocol: WindowedSum) -> None:
        self._protocol = protocol
        self._solved: deque[Tensor] = deque(maxlen=protocol.band - 1)  # data counts, the last round's first

    def solve(self, window: Tensor, *, reports: int) -> Tensor:
        """Unbiased estimate of the round's sum of vectors, float64 (dim,), from its window, (dim,).

        ``reports`` are the clients whose data and coins the round added.
        """
        protocol = self._protocol
        checks.whole("reports", reports, at_least=0)
        if window.shape != (protocol.dim,):
            raise ValueError(f"a window is ({protocol.dim},), got {tuple(window.shape)}")
        counts = window.double() - reports * protocol.coins_highest / 2  # heads are symmetric
        for weight, earlier in zip(protocol.coefficients[1:], self._solved, strict=False):
            counts -= weight * earlier
        counts /= protocol.coefficients[0]
        self._solved.appendleft(counts)
        return protocol.lattice.in_units(counts + reports * protocol.lattice.lowest)
