"""Windows of sums: weighted sums over rounds are seen, which the server solves for each round's."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting import Floats, Sampling
from shuffle_plugins.accounting.rounds.sums import LARGEST_COEFFICIENT, Coefficients, WindowRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Dim, Radius
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.coins import CoinSum
from shuffle_plugins.protocols.draws import drawn_range, heads
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.protocols.sums import Participants
from shuffle_plugins.randomness.sources import Randomness

_COLUMNS = 256  # rounds whose noise is followed through a schedule of learning rates


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
    norm: ClassVar[Norm] = Norm.L2
    lattice_type: ClassVar[type[Any]] = FixedPoint

    dim: Dim
    radius: Radius = 1.0
    coefficients: Coefficients = (1,)

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
    def participants(
        self, *, population: int | None = None, cohort: float | None = None, sampling: Sampling | None = None
    ) -> Participants:
        """The fewest clients that a window may have, whoever came: later windows are of clients that are not
        known yet. Nothing is taken off for being drawn.
        """
        if cohort is not None and cohort < self.cohort:
            raise ValueError(
                f"the windows after this one are promised the coins of {self.cohort} clients, and so is this "
                f"one: a round of {cohort} opens nothing"
            )
        return super().participants()

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> WindowRound:
        whole = super()._round(honest, participation, **who)
        return WindowRound(coefficients=self.coefficients, **vars(whole))

    @property
    @override
    def noise_variance(self) -> float:
        """Variance of the noise in one coordinate of a series' first sum, in squared units of the data."""
        return super().noise_variance / self.coefficients[0] ** 2

    @override
    def variance_over(self, num_steps: int, *, momentum: float = 0.0) -> float:
        # Coins have z²/c_0² in one round and z²·‖AC⁻¹‖²_F/‖A‖²_F over so many (docs/proofs/sums.md, "The
        # noise that is left"): ``left`` is the root of the ratio of the two. Rounding is that of one round.
        left = prefix_noise(self.coefficients, rounds=num_steps, momentum=momentum) * self.coefficients[0]
        return self.worst_variance + self.dim * self.noise_variance * (left**2 - 1)

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
        return WindowSolver(self).solve(Windows(self).open(numbers, reports=reports), reports=reports)


class Windows:
    """The windows of a series, opened one after the other from totals, where one party may see these.

    It keeps the data counts of the last b − 1 rounds, and gives out windows alone: open one a round, as a
    second one with fresh coins is covered by no proof (``docs/proofs/sums.md``, "What must not happen").
    """

    def __init__(self, protocol: WindowedSum) -> None:
        self._protocol = protocol
        self._kept: deque[Tensor] = deque(maxlen=protocol.band - 1)  # the last round's first

    def open(self, total: Tensor, *, reports: int) -> Tensor:
        """The window of this round, int64 (dim,), from its total, int64 (2·dim,), of so many reports.

        Series side by side have totals (series, 2·dim), and windows (series, dim). A ValueError for fewer
        reports than the protocol's ``cohort``, whose coins every window is promised; nothing is kept of them.
        """
        if checks.whole("reports", reports, at_least=0) < self._protocol.cohort:
            raise ValueError(
                f"a window is promised the coins of {self._protocol.cohort} clients, got {reports} reports: "
                "leave this round out of the series"
            )
        if total.shape[-1:] != (self._protocol.size,) or total.is_floating_point():
            raise ValueError(f"a total is {self._protocol.size} whole numbers, got {tuple(total.shape)}")
        data, coins = total.to(torch.int64).cpu().tensor_split(2, dim=-1)
        window: Tensor = self._protocol.coefficients[0] * data + coins
        for weight, earlier in zip(self._protocol.coefficients[1:], self._kept, strict=False):
            window += weight * earlier
        self._kept.appendleft(data.clone())
        return window


class WindowSolver:
    """Solves the windows of a series for each round's sum, forward, in O(b·dim) memory.

    Of the estimates of one series it is prefix sums whose noise is small: late windows take back what early
    ones had too much. Start a new one with every series.

    Args:
        keep: returns an equal tensor to keep of one that is solved, such as one in a file.
    """

    def __init__(self, protocol: WindowedSum, *, keep: Callable[[Tensor], Tensor] | None = None) -> None:
        self._protocol = protocol
        self._keep = keep
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
        self._solved.appendleft(counts if self._keep is None else self._keep(counts))
        return protocol.lattice.in_units(counts + reports * protocol.lattice.lowest)


def window_coefficients(
    *,
    rounds: int,
    band: int,
    momentum: float = 0.0,
    learning_rates: Sequence[float] | None = None,
    rounding: float = 0.01,
) -> tuple[int, ...]:
    """The whole numbers c_0, …, with which a :class:`WindowedSum` leaves the least noise in a model.

    Least is the mean square, over all rounds, of what the noise of solved sums does to a model that adds them
    up, at equal ε.

    Args:
        rounds: T of the series.
        band: the largest b: in so many rounds in a row a client takes part once.
        momentum: β of the optimizer, in [0, 1).
        learning_rates: one for each round, if they differ.
        rounding: share of the noise that whole numbers may cost over real ones; c_0 is the least that does.
            If none does up to 2**16 it is a ValueError.
    """
    from scipy.optimize import minimize

    weigh = _Workload.of(rounds, momentum, learning_rates)
    checks.number("rounding", rounding, above=0)
    most = min(checks.whole("band", band), weigh.rounds)
    if most == 1:
        return (1,)

    def cost(tail: Floats) -> tuple[float, Floats]:
        """ln(‖c‖₂²·‖AC⁻¹‖²_F), c_0 = 1, and its slope (docs/proofs/sums.md, "The noise that is left")."""
        c = np.append(1.0, tail)
        noise, slope = weigh.noise(c)
        return math.log(noise) + math.log(c @ c), (slope / noise + 2 * c / (c @ c))[1:]

    # Without momentum the A of many rounds is 1/(1 − x), and its root c(x) = 1/√(1 − x) is nearly the best.
    # Its coefficients are c_j = c_{j−1}·(1 − 1/(2j)).
    start = np.cumprod(1 - 0.5 / np.arange(1, most))
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * (most - 1))
    exact, least = np.append(1.0, found.x), float(found.fun)

    def near(first: int) -> bool:
        # ``cost`` is of variances, ``rounding`` of deviations.
        return cost(np.rint(first * exact)[1:] / first)[0] <= least + 2 * math.log1p(rounding)

    finest = int(LARGEST_COEFFICIENT / exact.max())
    if not near(finest):
        raise ValueError(
            f"whole numbers up to {LARGEST_COEFFICIENT:,} add a larger share to the noise than {rounding:g}: "
            "ask for a larger rounding"
        )
    first = next(filter(near, range(1, finest + 1)))
    whole = np.trim_zeros(np.rint(first * exact), "b")
    return tuple(int(each) for each in whole)


def prefix_noise(
    coefficients: Sequence[float],
    *,
    rounds: int,
    momentum: float = 0.0,
    learning_rates: Sequence[float] | None = None,
) -> float:
    """What noise in windows does to a model that adds up solved sums, over what it does to one that adds up
    the windows of c = (1,), in which it is independent: root mean squares over all rounds.

    Times ‖c‖₂ it is the ratio of noise at equal ε; arguments are as of :func:`window_coefficients`.
    """
    weigh = _Workload.of(rounds, momentum, learning_rates)
    noise, alone = (weigh.noise(np.asarray(c, dtype=np.float64))[0] for c in (coefficients, (1.0,)))
    return math.sqrt(noise / alone)


@dataclass(frozen=True)
class _Workload:
    """A model after each of so many steps, as sums of what the steps were given."""

    rounds: int
    momentum: float
    rates: Floats | None

    @classmethod
    def of(cls, rounds: int, momentum: float, learning_rates: Sequence[float] | None) -> _Workload:
        checks.whole("rounds", rounds)
        checks.number("momentum", momentum, at_least=0, below=1)
        if learning_rates is None:
            return cls(rounds, momentum, None)
        if len(learning_rates) != rounds:
            raise ValueError(f"give a learning rate for each of {rounds} rounds, not {len(learning_rates)}")
        rates = [checks.number("a learning rate", rate, at_least=0) for rate in learning_rates]
        if not max(rates):
            raise ValueError("learning_rates are all zero: a model that does not move has no noise")
        return cls(rounds, momentum, np.asarray(rates))

    def noise(self, coefficients: Floats) -> tuple[float, Floats]:
        """Σ_t of the variance in the model after step t, for noise of variance 1, and its slope in c.

        That is ‖AC⁻¹‖²_F of docs/proofs/sums.md, "The noise that is left". At equal rates it is
        Σ_i (T − i)·h_i², h (``moment``) the coefficients of 1/(c(x)(1 − x)(1 − βx)). In a schedule ``moment``
        is of 1/(c(x)(1 − βx)): weighed with the rates from a round on, and added up, it is that round's
        column of AC⁻¹, which is computed of evenly spaced rounds, and taken to be as long between them.
        """
        from scipy.signal import lfilter

        moment = np.zeros(self.rounds)
        moment[0] = 1.0
        smoothing = [1.0, -self.momentum]
        if self.rates is None:
            smoothing = np.convolve(smoothing, [1.0, -1.0]).tolist()
        moment = lfilter([1.0], np.convolve(coefficients, smoothing), moment)
        total, pull = 0.0, np.zeros(self.rounds)  # and how the total rises with what ``moment`` holds
        if self.rates is None:
            left = np.arange(self.rounds, 0, -1)
            total, pull = float(left @ moment**2), 2 * left * moment
        else:
            apart = -(-self.rounds // _COLUMNS)
            for first in range(0, self.rounds, apart):
                rates = self.rates[first:]
                model = np.cumsum(rates * moment[: len(rates)])
                total += apart * float(model @ model)
                pull[: len(rates)] += apart * 2 * rates * np.cumsum(model[::-1])[::-1]
        # The slope in c_j is −Σ_i pull_i·g_{i−j}, g (``turned``) the coefficients of moment(x)/c(x); from
        # c_T on, which are in no window, it is 0.
        turned = lfilter([1.0], coefficients, moment)
        slope = [-(pull[j:] @ turned[: max(0, self.rounds - j)]) for j in range(len(coefficients))]
        return total, np.asarray(slope, dtype=np.float64)
