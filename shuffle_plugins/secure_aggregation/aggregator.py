"""The aggregator: opens sealed seeds, expands them, and gives out one sum of the expansions per round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation.envelopes import SeedOpener, sealed_seed_size
from shuffle_plugins.secure_aggregation.expansion import SEED_BYTES, Expansion
from shuffle_plugins.secure_aggregation.residues import Residues
from shuffle_plugins.secure_aggregation.terms import SumTerms
from shuffle_plugins.shuffler import BatchRefused, BatchService, Refusal, ShuffleError

_AT_ONCE = 16  # seeds expanded together


class Sealed(NamedTuple):
    """What the server passes on to an aggregator about one client.

    Attributes:
        commitment: 32 bytes, the digest of the share that the client sent to the server.
        envelope: the seed, sealed to the aggregator.
    """

    commitment: bytes
    envelope: bytes


@dataclass(frozen=True, slots=True)
class Expanded:
    """An aggregator's answer to the server about one round. It gives out nothing else.

    Attributes:
        total: the sum of the expansions of the good envelopes' seeds.
        added: how many clients' seeds are in it.
        rejected: why envelopes were dropped, by their positions among all envelopes.
    """

    total: Residues
    added: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)


class Aggregator(BatchService):
    """Adds up the expansions of the seeds that a round's clients sealed to it.

    At least one aggregator must be run by an organisation that does not work together with the server. An
    aggregator sees seeds, which are independent of all counts. It gives out one sum per round: the difference
    of two sums could be one client's expansion, and with it the server could open that client's share.

    A bad envelope is dropped without the others, and the server is told its position. This gives the server
    nothing new, since it could have left the envelope out itself. Where there are several aggregators, all of
    them must add up the same clients: the server first asks each which envelopes are good (:meth:`check`, as
    often as it likes), and then for the sum of those that all found good (``exact=True``).

    The arguments are those of :class:`~shuffle_plugins.shuffler.BatchService`.
    """

    role = "aggregator"

    def check(self, sealed: Iterable[Sealed], *, terms: SumTerms) -> dict[int, Refusal]:
        """Check a round's envelopes, and return why each bad one is bad, by its position.

        The round is not spent by this.

        The reasons are WRONG_SIZE; UNREADABLE and UNKNOWN_SIGNER, see :class:`SeedOpener`; and DUPLICATE for
        a second envelope of the same signer.
        """
        rejected: dict[int, Refusal] = {}
        for _ in self._seeds(sealed, terms=terms, rejected=rejected):
            pass
        return rejected

    def add_up(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, minimum: int = 2, exact: bool = False
    ) -> Expanded:
        """Add up the expansions of a round's seeds. First the round is recorded on disk as spent.

        This needs memory for one vector, whatever the number of clients, and 32 bytes for each client to
        recognise duplicates.

        Args:
            sealed: one for each client whose share the server has.
            terms: the round as the server describes it. Envelopes of clients that were told something else
                do not open.
            minimum: fewest clients that the server wants in the sum. The largest of three numbers applies:
                this one, what the clients were promised (``terms.context.minimum``), and the aggregator's own
                minimum.
            exact: whether to refuse the whole batch if a single envelope is bad, instead of leaving that
                envelope out.

        Raises:
            BatchRefused: REPLAYED for a spent round; UNDER_MINIMUM for too few good envelopes; NOT_AGREED for
                a bad envelope with ``exact``.
            ShuffleError: if the state file cannot be written.
        """
        required = self._required(terms, minimum)
        self._spent.spend(terms.context.token)
        expansion, rejected, added = Expansion(terms.layout), dict[int, Refusal](), 0
        seeds = self._seeds(sealed, terms=terms, rejected=rejected)
        while group := list(islice(seeds, _AT_ONCE)):
            expansion.add(*group)
            added += len(group)
        if exact and rejected:
            raise BatchRefused(Refusal.NOT_AGREED, rejected)
        if added < required:
            raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
        return Expanded(expansion.total, added, rejected)

    def _seeds(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, rejected: dict[int, Refusal]
    ) -> Iterator[bytes]:
        """Yield the seeds in good envelopes; record in ``rejected`` why the others are bad."""
        for _, seed in self._opened(sealed, terms=terms, rejected=rejected, size=SEED_BYTES):
            yield seed

    def _opened(
        self, sealed: Iterable[Sealed], *, terms: SumTerms, rejected: dict[int, Refusal], size: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each good envelope, and the secret of ``size`` bytes in it."""
        if self.public_key.sealing not in terms.aggregators:
            raise ShuffleError("the server asks for a sum among whose aggregators this one is not")
        opener = SeedOpener(terms=terms, private_key=self._key.sealing, enrolled=self._enrolled)
        sealed_size, signers = sealed_seed_size(size), set[bytes]()
        for position, (commitment, envelope) in enumerate(sealed):
            try:
                if len(envelope) != sealed_size:
                    raise BatchRefused(Refusal.WRONG_SIZE)
                signer, secret = opener.open(envelope, commitment=commitment)
                if signer in signers:
                    raise BatchRefused(Refusal.DUPLICATE)
            except BatchRefused as refused:
                rejected[position] = refused.code
                continue
            signers.add(signer)
            yield position, secret

    def _required(self, terms: SumTerms, minimum: int) -> int:
        """Fewest clients of a sum: the largest of the aggregator's own minimum and the others'."""
        return max(self._minimum, checks.whole("minimum", minimum, at_least=2), terms.context.minimum)
