"""Rounds in which every client flips the bits of a vector, and only the sums of the bits are seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shuffle_plugins.accounting.composition.tags import sampled_composition, sampled_instance
from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    discounted,
    tighter,
)
from shuffle_plugins.accounting.pairs.bits import (
    BitResponse,
    counted_instance,
    counted_losses,
    elsewhere_instance,
    enough_noise,
    sampled_counts_losses,
)
from shuffle_plugins.accounting.rounds.round import Round, lower_families, lower_losses, upper_losses
from shuffle_plugins.accounting.rounds.tags import Tag
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks

_LOUDEST_UNEVEN = 40.0  # ε0 of a bit; beyond it a zero is never flipped in practice, and nobody is hidden
_FEW_FLIPS = 60.0  # times γ²: of zeros of a count, up to which the others' own bit tells more (measured)
_INSTANCE, _ELSEWHERE = "counted bits instance", "counted bits held elsewhere instance"


class BitEncoding(StrEnum):
    """How the bits of unary encoding are flipped; ε0 is the bit's own."""

    SYMMETRIC = "symmetric"
    """Ones and zeros with probability 1/(e^ε0 + 1): RAPPOR. A report of weight one has 2·ε0."""

    OPTIMAL = "optimal"
    """Zeros with probability 1/(e^ε0 + 1), ones with 1/2: OUE. A report of weight one has ε0."""

    def response(self, bit_epsilon: float) -> BitResponse:
        """The probabilities of a one."""
        make = BitResponse.symmetric if self is BitEncoding.SYMMETRIC else BitResponse.optimal
        return make(bit_epsilon)


_LITTLE_NOISE = {BitEncoding.SYMMETRIC: 100.0, BitEncoding.OPTIMAL: 200.0}
"""Variance of a count; with more, a sample's counts are as good as hidden all at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedRound(Round):
    """A round of counted unary encoding: each client flips ``length`` bits, and the sum of each is seen.

    At most ``ones`` bits of a client's vector are set. Two such vectors differ in at most ``ones`` bits that
    fall from one to zero and as many that rise. Given the data, the sums are independent of each other; those
    of the other bits have the same law. So the round is the composition of ``2·ones`` counts (fewer if the
    vector is shorter). ``docs/proofs/tags.md`` has the proof.

    Attributes:
        population, cohort, sampling, adversary: as of :class:`Round`.
        bit_epsilon: ε0 of one bit, in [1e-9, 500]; up to 40 in the optimal encoding.
        length: bits of a client's vector.
        ones: how many of them may be set, in [1, length].
        encoding: how bits are flipped.
        honest: clients of the cohort counted on to flip their bits; all of them if None.
        distance: bound on the total variation between the sums as drawn and this.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    cohort: int
    bit_epsilon: float
    length: int
    ones: int = 1
    encoding: BitEncoding = BitEncoding.SYMMETRIC
    distance: float = 0.0
    honest: int | None = None

    KIND: ClassVar[str] = "counted"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/tags.md"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    STORED: ClassVar[tuple[str, ...]] = (
        "bit_epsilon",
        "length",
        "ones",
        "encoding",
        "distance",
        "population",
        "cohort",
        "honest",
    )

    def __post_init__(self) -> None:
        Round.__post_init__(self)
        object.__setattr__(self, "bit_epsilon", checks.local_epsilon(self.bit_epsilon))
        object.__setattr__(self, "encoding", checks.choice(BitEncoding, "encoding", self.encoding))
        object.__setattr__(self, "distance", checks.fraction("distance", self.distance))
        checks.dim(self.length)
        checks.whole("ones", self.ones, at_most=self.length)
        if self.honest is not None:
            checks.whole("honest", self.honest, at_most=self.cohort)
        if self.encoding is BitEncoding.OPTIMAL and self.bit_epsilon > _LOUDEST_UNEVEN:
            raise ValueError(
                f"bit_epsilon must be at most {_LOUDEST_UNEVEN:g} in the optimal encoding, got "
                f"{self.bit_epsilon!r}: so few zeros are flipped that nobody is hidden"
            )

    @property
    def response(self) -> BitResponse:
        """The probabilities of a one."""
        return self.encoding.response(self.bit_epsilon)

    @property
    def local_epsilon(self) -> float:
        """ε0 of all bits of one client together."""
        bit = self.response
        fall, rise = math.log(bit.one / bit.zero), math.log(bit.not_zero / bit.not_one)
        fewer = min(self.ones, self.length - self.ones)
        return self.ones * max(fall, rise) + fewer * min(fall, rise)

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return "composed counts"

    @property
    def description(self) -> str:
        """The length of the vectors, and the ε0 of a bit."""
        return f"counts of {self.length} bits with {self.bit_epsilon:.6g} nats each, {self.encoding} encoding"

    @property
    def reports(self) -> int:
        """Clients whose bits hide each other."""
        return self.cohort if self.honest is None else self.honest

    @property
    def changes(self) -> int:
        """Bits in which two clients' vectors differ, at most."""
        return min(2 * self.ones, self.length)

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages."""
        return "the number of ones in each place, over all clients, and nobody's own bits"

    @property
    def replacement_distance(self) -> float:
        """Total variation between the sums as drawn and those that are accounted."""
        return self.distance

    @property
    def resolves_alone(self) -> bool:
        """False: composed counts have many outcomes."""
        return False

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of all counts that differ, composed, on a sample."""
        if self.encoding is BitEncoding.SYMMETRIC:
            laws = [upper_losses(self._tag().shuffled(self.reports), resolution)]
            counts = [self.changes]
        else:
            fall = counted_losses(self.response, others=self.reports - 1, resolution=resolution)
            laws, counts = [fall, fall.reversed()], [self.ones, self.ones]
        found = sampled_composition(laws, counts, sampling_rate=self.sampling_rate, resolution=resolution)
        bit = self.response
        noise = enough_noise(bit, self.reports) * bit.one * bit.not_one
        if (
            self.sampling_rate < 1
            and self.ones == 1
            and self.honest is None
            and noise <= _LITTLE_NOISE[self.encoding]
        ):
            drawn = sampled_counts_losses(
                self.response, population=self.population, cohort=self.cohort, resolution=resolution
            )
            return tighter(found, drawn)
        return found

    @property
    def lower_families(self) -> tuple[str, ...]:
        """One dataset, the one that tells more, if its round can be listed.

        Everybody else holds x', which differs from the client's x in all the bits that it can. In the optimal
        encoding, if everybody takes part and there are bits enough, nobody else holds any of the bits in
        which x and x' differ. On a sample everybody else then holds one bit that neither x nor x' has; in the
        symmetric encoding, too, where few zeros are flipped.
        """
        symmetric = self.encoding is BitEncoding.SYMMETRIC
        elsewhere = self.sampling_rate < 1 and self.ones == 1 and self.length >= 3 and self.honest is None
        few = self.cohort * self.response.zero <= _FEW_FLIPS * self.sampling_rate**2
        if elsewhere and (few or not symmetric):
            return (_ELSEWHERE,)
        return (_INSTANCE,) if symmetric or self.length >= 2 * self.ones else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of that dataset and its neighbour."""
        if family == _ELSEWHERE:
            found = elsewhere_instance(
                self.response, population=self.population, cohort=self.cohort, resolution=resolution
            )
            return discounted(found, self.distance)
        return self._dataset(resolution, exchanged=False)

    def reversed_lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of the neighbour and that dataset."""
        if family == _ELSEWHERE:  # two bits exchanged
            return self.lower_losses(family, resolution)
        return self._dataset(resolution, exchanged=True)

    def _dataset(self, resolution: Resolution, *, exchanged: bool) -> PrivacyLossDistribution:
        if self.encoding is BitEncoding.SYMMETRIC:
            alone = self._tag().shuffled(self.reports)
            laws = [lower_losses(alone, lower_families(alone)[0], resolution)]
            counts = [self.changes]
        else:
            fall = counted_instance(self.response, others=self.reports - 1, resolution=resolution)
            rise = fall.reversed()
            if self.sampling_rate < 1 or self.length < 3 * self.ones:
                # Who is not drawn leaves its place to one of the others: they must hold x'.
                held = counted_instance(
                    self.response, others=self.reports - 1, resolution=resolution, held=True
                )
                rise = held.reversed()
            laws, counts = [fall, rise], [self.ones, self.ones]
        found = sampled_instance(
            laws, counts, sampling_rate=self.sampling_rate, resolution=resolution, exchanged=exchanged
        )
        return discounted(found, self.distance)

    def _tag(self) -> Tag:
        return Tag(local_epsilon=self.bit_epsilon, count=1, places=False)
