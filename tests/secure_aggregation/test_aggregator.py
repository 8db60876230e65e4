"""An aggregator against hostile envelopes, hostile servers, and a lost state."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sharing_parties import CHECK_SEED, SumParties, round_context

from shuffle_plugins.secure_aggregation import (
    ResidueLayout,
    Sealed,
    SumTerms,
    WindowTerms,
    aggregator,
    commitment,
    seal_seed,
)
from shuffle_plugins.secure_aggregation.aggregator import aggregation_digest, answer_statement
from shuffle_plugins.secure_aggregation.sharing import reconstruct
from shuffle_plugins.shuffler import BatchRefused, Refusal
from shuffle_plugins.shuffler.keys import SigningKey, sealed_to, unsealed
from shuffle_plugins.shuffler.service import refusal_statement


@pytest.fixture
def parties(tmp_path: Path) -> SumParties:
    return SumParties(tmp_path)


def test_a_round_of_two_aggregators(parties: SumParties) -> None:
    sent = [parties.sent(client) for client in range(parties.clients)]
    sums = []
    for position in range(2):
        one = parties.aggregator(position)
        mine = [envelopes[position] for _, envelopes in sent]
        assert one.check(mine, terms=parties.terms) == {}
        assert one.check(mine, terms=parties.terms) == {}  # as often as one likes
        found = one.add_up(mine, terms=parties.terms, exact=True)
        assert (found.added, found.rejected) == (5, {})
        sums.append(found.total)
    total = reconstruct(
        [shared.share for shared, _ in sent], sums, layout=parties.terms.layout, check_seed=CHECK_SEED
    )
    assert np.array_equal(total, parties.counts.sum(axis=0))


def hostile(parties: SumParties) -> dict[str, tuple[Sealed, Refusal]]:
    """Envelopes that a hostile client or server could pass on to the first aggregator."""
    share, [good, others] = parties.sent(0)
    old = parties.terms_of(context=round_context(token=bytes(15) + b"x"))
    wider = parties.terms_of(layout=ResidueLayout(parties.size, 16))
    longer = parties.terms_of(layout=ResidueLayout(parties.size + 1, parties.terms.layout.bits))
    other_spec = parties.terms_of(context=round_context(fingerprint=bytes(31) + b"x"))
    promised = parties.terms_of(context=round_context(minimum=3))
    alone = parties.terms_of(aggregators=(parties.keys[0].public.sealing,))

    def told(terms: SumTerms) -> Sealed:
        data = share.share.to_bytes()
        envelope = seal_seed(
            share.seeds[0],
            terms=terms,
            share=data,
            aggregator_key=parties.keys[0].public.sealing,
            signing_key=parties.signing_keys[0],
        )
        return Sealed(commitment(data), envelope)

    altered = good.envelope[:-1] + bytes([good.envelope[-1] ^ 1])
    info = aggregator._TO_AGGREGATOR + parties.terms.digest() + others.commitment
    named = unsealed(others.envelope, parties.keys[1].sealing, info=info)
    passed_on = sealed_to(parties.keys[0].public.sealing, named, info=info)
    found = {
        "random": (Sealed(good.commitment, np.random.default_rng(0).bytes(176)), Refusal.UNREADABLE),
        "empty": (Sealed(good.commitment, b""), Refusal.WRONG_SIZE),
        "longer": (Sealed(good.commitment, good.envelope + b"x"), Refusal.WRONG_SIZE),
        "altered": (Sealed(good.commitment, altered), Refusal.UNREADABLE),
        "of another share": (Sealed(commitment(b"another"), good.envelope), Refusal.UNREADABLE),
        "no commitment": (Sealed(b"", good.envelope), Refusal.UNREADABLE),
        "to another aggregator": (others, Refusal.UNREADABLE),
        "passed on by another": (others._replace(envelope=passed_on), Refusal.UNKNOWN_SIGNER),
        "a stranger's": (parties.sent(0, signing_key=SigningKey.generate())[1][0], Refusal.UNKNOWN_SIGNER),
    }
    for name, terms in {
        "another round": old,
        "another number of bits": wider,
        "another dimension": longer,
        "another mechanism": other_spec,
        "another promise": promised,
        "other aggregators": alone,
    }.items():
        found[f"told {name}"] = (told(terms), Refusal.UNREADABLE)
    return found


def test_hostile_envelopes_are_dropped_each_by_itself(parties: SumParties) -> None:
    bad = hostile(parties)
    good = [parties.sent(client)[1][0] for client in range(1, 5)]
    batch = [*(envelope for envelope, _ in bad.values()), *good, good[0]]
    expected = {position: code for position, (_, code) in enumerate(bad.values())}
    expected[len(batch) - 1] = Refusal.DUPLICATE
    assert parties.aggregator().check(batch, terms=parties.terms) == expected
    found = parties.aggregator().add_up(batch, terms=parties.terms)
    assert (found.added, found.rejected) == (4, expected)


def test_where_the_set_was_agreed_no_envelope_may_be_bad(parties: SumParties) -> None:
    batch = [parties.sent(client)[1][0] for client in range(5)]
    batch[2] = Sealed(batch[2].commitment, bytes(176))
    with pytest.raises(BatchRefused) as error:
        parties.aggregator().add_up(batch, terms=parties.terms, exact=True)
    assert error.value.code is Refusal.NOT_AGREED
    assert error.value.rejected == {2: Refusal.UNREADABLE}
    assert error.value.code.conclusive


def test_a_round_is_added_up_once_whatever_came_of_it(parties: SumParties) -> None:
    batch = [parties.sent(client)[1][0] for client in range(5)]
    assert refused(parties.aggregator().add_up, batch[:2], terms=parties.terms) is Refusal.UNDER_MINIMUM
    for again in (batch, batch[1:]):  # a sum of fewer would show the one that is missing
        assert refused(parties.aggregator().add_up, again, terms=parties.terms) is Refusal.REPLAYED


@pytest.mark.parametrize(("own", "asked", "promised"), [(5, 2, 2), (2, 5, 2), (2, 2, 5)])
def test_the_largest_minimum_holds(parties: SumParties, own: int, asked: int, promised: int) -> None:
    terms = parties.terms_of(context=round_context(minimum=promised))
    batch = [parties.sent(client, terms=terms)[1][0] for client in range(4)]
    add_up = parties.aggregator(minimum=own).add_up
    assert refused(add_up, batch, terms=terms, minimum=asked) is Refusal.UNDER_MINIMUM


def test_the_round_is_written_down_before_an_envelope_is_opened(
    parties: SumParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    batch = [parties.sent(client)[1][0] for client in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(aggregator, "open_seed", killed)
        with pytest.raises(KeyboardInterrupt):
            parties.aggregator().add_up(batch, terms=parties.terms)
    assert refused(parties.aggregator().add_up, batch, terms=parties.terms) is Refusal.REPLAYED


def test_memory_does_not_grow_with_the_number_of_clients(
    parties: SumParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of a client is that its key was there. Nothing is opened: all have the same seed."""
    peaks = []
    for clients in (10, 300):
        context = round_context(token=clients.to_bytes(16, "big"))
        terms = parties.terms_of(layout=ResidueLayout(50_000, 22), context=context)
        signers = [i.to_bytes(32, "little") for i in range(clients)]
        opened = iter([(signer, bytes(32)) for signer in signers])
        monkeypatch.setattr(aggregator, "open_seed", lambda *_, opened=opened, **__: next(opened))
        stream = (Sealed(bytes(32), bytes(176)) for _ in range(clients))
        one = parties.aggregator(enrolled=frozenset(signers))
        tracemalloc.start()
        assert one.add_up(stream, terms=terms).added == clients
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 300 * 200  # a vector has 200,000 bytes


def test_statements_that_differ_in_anything_differ(parties: SumParties) -> None:
    request: dict[str, Any] = {
        "step": "add",
        "terms": parties.terms,
        "minimum": 3,
        "commitments": [b"a", b"b"],
        "envelopes": [b"c", b"d"],
    }
    window = WindowTerms(series=bytes(32), index=0, coefficients=(2, 1), fixed=bytes(32))
    changes: list[dict[str, Any]] = [{}, {"series": b"x" * 32}, {"index": 1}, {"fixed": b"x" * 32}]
    changes += [{"coefficients": (2,)}, {"coefficients": (2, 2)}]
    windows = [replace(window, **change) for change in changes]
    others: list[dict[str, Any]] = [
        {"step": "check"},
        {"terms": parties.terms_of(context=round_context(run="other"))},
        {"terms": parties.terms_of(layout=ResidueLayout(8, 6))},
        {"terms": parties.terms_of(aggregators=parties.terms.aggregators[::-1])},
        *({"terms": parties.terms_of(layout=ResidueLayout(7, 6, vectors=2), window=one)} for one in windows),
        {"minimum": 4},
        {"commitments": [b"b", b"a"]},
        {"envelopes": [b"d", b"c"]},
        {"commitments": [b"ab"]},
    ]
    digests = [aggregation_digest(**{**request, **other}) for other in [{}, *others]]
    said = [
        answer_statement(request=digest, rejected=rejected)
        for digest in digests[:2]
        for rejected in ({}, {0: Refusal.DUPLICATE})
    ]
    said += [
        answer_statement(request=digests[0], rejected={}, given=given)
        for given in ([b""], [b"x"], [b"x", b""])
    ]
    said += [
        refusal_statement(request=digests[0], code=code, rejected={})
        for code in (Refusal.REPLAYED, Refusal.UNDER_MINIMUM)
    ]
    assert len({*digests, *said}) == len(digests) + len(said)
