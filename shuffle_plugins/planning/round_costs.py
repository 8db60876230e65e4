"""What a round costs each party in bytes, seconds and memory, by the number of clients.

Bytes are those of what the parties send each other, exactly; a host's framing of messages and the model that
clients are sent come on top. Seconds are of one core, from rates that benchmarks measured; another machine
has others. Memory is what grows with the round, without that of the programs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation import ResidueLayout, SumTerms, VerifiedTerms, sealed_seed_size
from shuffle_plugins.secure_aggregation.aggregator import COMMITMENT_BYTES
from shuffle_plugins.shuffler import RoundContext
from shuffle_plugins.shuffler.envelopes import envelope_size, layer_size, ticket_size

_KEY_MEMORY = 200  # bytes that a signing key takes in a set of keys


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of one core for the steps of a round, unless given those of the machine of the benchmarks.

    A test holds the model to within 2.5 times what was measured, at any length of vectors.
    """

    share: float = 5e-8  # of a client, to share one count and pack it
    seal: float = 1.5e-4  # of a client, to seal one envelope
    seal_byte: float = 1e-9  # to seal or open one byte of a report, in one layer
    digest_byte: float = 9e-10  # to bind an envelope to one byte of a share
    add: float = 4.2e-8  # of the server, to read one count of a share, check its digest and add it up
    open_seed: float = 2e-4  # of an aggregator, to open an envelope, check its signature and find duplicates
    expand_byte: float = 2.7e-10  # of an aggregator, to expand one byte and add it up
    prove: float = 4.3e-7  # of a client, to prove one bit of a count
    verify: float = 1.25e-7  # of the server or an aggregator, to verify one bit of a count and add it up
    mix: float = 3e-4  # of a mixer, to open an envelope, check its signature, and permute it
    open_report: float = 6e-5  # of the server, to open one report out of a mixed batch


_MEASURED = Rates()


@dataclass(frozen=True, kw_only=True)
class PartyCost:
    """What a round costs one party: bytes received and sent, seconds of one core, bytes held at once.

    ``party`` is "client", "server", "aggregator" or "mixer".
    """

    party: str
    received: int
    sent: int
    seconds: float
    memory: int


def sum_round_costs(
    *,
    clients: int,
    size: int,
    largest: int,
    aggregators: int = 1,
    verified: bool = False,
    rates: Rates = _MEASURED,
) -> tuple[PartyCost, PartyCost, PartyCost]:
    """What a shared sum costs one client, the server, and one aggregator.

    Args:
        size: counts of a client: ``mechanism.counts.size``.
        largest: the largest count, where the smallest is 0: ``mechanism.counts.highest - lowest``.
        verified: whether clients prove that their counts are within bounds.
    """
    aggregators = checks.whole("aggregators", aggregators)
    layout = ResidueLayout.of_sum(
        size=size, largest=largest, clients=checks.whole("clients", clients, at_least=2)
    )
    context = RoundContext(run="", token=bytes(16), fingerprint=bytes(32))
    keys = tuple(number.to_bytes(32, "big") for number in range(aggregators))
    terms = (
        VerifiedTerms(context=context, layout=layout, aggregators=keys, largest=largest)
        if verified
        else SumTerms(context=context, layout=layout, aggregators=keys)
    )
    envelope = sealed_seed_size(terms.secret_bytes)
    reply = terms.share_bytes + aggregators * envelope
    relayed = COMMITMENT_BYTES + envelope  # of each client, twice: to be checked, then to be added up
    expansion = layout.size * layout.dtype.itemsize
    digest = rates.digest_byte * terms.share_bytes
    if isinstance(terms, VerifiedTerms):
        prio3, bits = terms.prio3, size * largest.bit_length()
        request = 2 * relayed + prio3.verifier_message_size
        answers = prio3.verifier_share_size + prio3.verifier_message_size  # and the seed that it is to be
        answer = prio3.agg_share_size
        sharing, server, aggregator = rates.prove * bits, rates.verify * bits, rates.verify * bits
        vector, state = answer, answer + prio3.verifier_share_size
    else:
        request, answers, answer = 2 * relayed, 0, layout.num_bytes
        sharing = rates.share * size + rates.expand_byte * expansion * (aggregators - 1)
        server, aggregator = rates.add * size, rates.expand_byte * expansion
        vector, state = expansion, 0
    return (
        PartyCost(
            party="client",
            received=0,
            sent=reply,
            seconds=sharing + aggregators * (rates.seal + digest),
            memory=reply + (1 + aggregators) * 8 * size,
        ),
        PartyCost(
            party="server",
            received=clients * (reply + aggregators * answers) + aggregators * answer,
            sent=clients * aggregators * request,
            seconds=clients * server,
            memory=clients * (reply + state + aggregators * (relayed + answers)) + (1 + aggregators) * vector,
        ),
        PartyCost(
            party="aggregator",
            received=clients * request,
            sent=clients * answers + answer,
            seconds=clients * (2 * rates.open_seed + aggregator),
            memory=clients * (relayed + answers + _KEY_MEMORY) + vector,
        ),
    )


def mixed_round_costs(
    *, clients: int, report_bytes: int, mixers: int = 1, rates: Rates = _MEASURED
) -> tuple[PartyCost, ...]:
    """What a mixed round costs one client, the server, and each mixer in their order."""
    clients, mixers = checks.whole("clients", clients, at_least=2), checks.whole("mixers", mixers)
    checks.whole("report_bytes", report_bytes)
    layers = [layer_size(report_bytes, mixers=mixers, position=place) for place in range(mixers + 1)]
    got = [layers[place] + ticket_size(mixers=mixers, position=place) for place in range(mixers)]
    envelope, layer = envelope_size(report_bytes, mixers=mixers), rates.seal_byte * report_bytes
    return (
        PartyCost(
            party="client",
            received=0,
            sent=envelope,
            seconds=(1 + mixers) * (rates.seal + layer) + (mixers - 1) * rates.seal,  # layers, tickets
            memory=2 * envelope,
        ),
        PartyCost(
            party="server",
            received=clients * (envelope + sum(layers[1:])),
            sent=clients * sum(got),
            seconds=clients * (rates.open_report + layer),
            memory=clients * 2 * envelope,
        ),
        *(
            PartyCost(
                party="mixer",
                received=clients * taken,
                sent=clients * given,
                seconds=clients * (rates.mix + layer),
                memory=min(1 << 25, clients * taken) + clients * _KEY_MEMORY,
            )
            for taken, given in zip(got, layers[1:], strict=True)
        ),
    )
