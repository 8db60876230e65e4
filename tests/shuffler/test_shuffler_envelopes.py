import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sealing import SIZE, Parties, round_context

from shuffle_plugins.shuffler import Refusal, RoundContext, ShuffleError, envelopes
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, envelope_size, open_reports
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    SigningKey,
    public_key_bytes,
    sealed_to,
    signed_to,
    unsealed,
)

REPORT = bytes(range(SIZE))


@pytest.fixture(scope="module")
def parties() -> Parties:
    return Parties()


def opener(parties: Parties, **changes: Any) -> EnvelopeOpener:
    return EnvelopeOpener(
        **{
            "context": parties.context,
            "analyzer_key": parties.analyzer_key,
            "private_key": parties.mixer_key.sealing,
            "enrolled": parties.enrolled,
            **changes,
        }
    )


def test_a_report_goes_through_both_layers(parties: Parties) -> None:
    opened = opener(parties).open(parties.envelope(REPORT, client=2))
    assert (opened.signer, opened.real) == (public_key_bytes(parties.clients[2]), True)
    reports = open_reports([opened.inner], context=parties.context, analyzer_private_key=parties.analyzer)
    assert reports == [REPORT]
    assert not opener(parties).open(parties.envelope(None)).real
    for length in (0, 31, 48, envelope_size(0) - 1):
        assert refused(opener(parties).open, os.urandom(length)) is Refusal.UNREADABLE


@given(size=st.integers(0, 3000), seed=st.binary(min_size=1, max_size=4))
def test_lengths_tell_nothing(size: int, seed: bytes) -> None:
    parties = Parties(clients=[SigningKey.generate()])
    report = (seed * (size // len(seed) + 1))[:size]
    lengths = {len(parties.envelope(one, size=size)) for one in (report, None, bytes(size))}
    assert lengths == {envelope_size(size)}


def test_every_flipped_bit_is_noticed(parties: Parties) -> None:
    """The highest bit of the point too, which X25519 ignores: HPKE derives its keys from all of them."""
    honest = opener(parties)
    envelope = parties.envelope(REPORT)
    for bit in range(8 * len(envelope)):
        altered = bytearray(envelope)
        altered[bit // 8] ^= 1 << bit % 8
        assert refused(honest.open, bytes(altered)) is Refusal.UNREADABLE


@pytest.mark.parametrize(
    "change",
    [{"run": "other"}, {"token": bytes(16)}, {"fingerprint": bytes(32)}],
    ids=lambda change: next(iter(change)),
)
def test_an_envelope_opens_in_its_own_round_alone(parties: Parties, change: dict[str, Any]) -> None:
    context = parties.context
    values = {"run": context.run, "token": context.token, "fingerprint": context.fingerprint}
    other = RoundContext(**{**values, **change})
    envelope = parties.envelope(REPORT)
    assert refused(opener(parties, context=other).open, envelope) is Refusal.UNREADABLE
    inner = opener(parties).open(envelope).inner
    assert open_reports([inner], context=other, analyzer_private_key=parties.analyzer) == []


def test_a_client_that_was_told_another_analyzer_key_is_noticed(parties: Parties) -> None:
    """Else a server could tell its report by the key that opens it."""
    envelope = parties.envelope(REPORT, analyzer_key=public_key_bytes(SealingKey.generate()))
    assert refused(opener(parties).open, envelope) is Refusal.UNREADABLE


def test_other_keys_open_nothing(parties: Parties) -> None:
    envelope = parties.envelope(REPORT)
    assert refused(opener(parties, private_key=SealingKey.generate()).open, envelope) is Refusal.UNREADABLE
    assert refused(opener(parties, private_key=parties.analyzer).open, envelope) is Refusal.UNREADABLE
    inner = opener(parties).open(envelope).inner
    for key in (SealingKey.generate(), parties.mixer_key.sealing):
        assert open_reports([inner], context=parties.context, analyzer_private_key=key) == []
    assert open_reports([envelope], context=parties.context, analyzer_private_key=parties.analyzer) == []


def bound(parties: Parties, label: bytes, *, keys: Sequence[bytes] = (), position: int = 0) -> bytes:
    """What a layer, a ticket or a signature is bound to."""
    binding = envelopes.cascade_binding(
        context=parties.context,
        analyzer_key=parties.analyzer_key,
        mixer_keys=keys or [parties.mixer_key.public.sealing],
    )
    return envelopes._at(label, binding, position)


def resealed(parties: Parties, cover: bytes) -> bytes:
    return sealed_to(parties.mixer_key.public.sealing, cover, info=bound(parties, envelopes._LAYER))


def cover_of(parties: Parties, envelope: bytes) -> bytes:
    return unsealed(envelope, parties.mixer_key.sealing, info=bound(parties, envelopes._LAYER))


def test_every_flipped_bit_under_the_cover_is_noticed(parties: Parties) -> None:
    """Whoever can seal to the mixer still cannot change flag, signer, signature or the sealed report."""
    cover = cover_of(parties, parties.envelope(REPORT))
    assert opener(parties).open(resealed(parties, cover)).real
    for bit in range(8 * len(cover)):
        altered = bytearray(cover)
        altered[bit // 8] ^= 1 << bit % 8
        code = refused(opener(parties).open, resealed(parties, bytes(altered)))
        assert code in (Refusal.UNKNOWN_SIGNER, Refusal.UNREADABLE)


@pytest.mark.parametrize(
    ("flag", "inner"),
    [(b"\x07", bytes(80)), (envelopes._REPORT, b"short"), (envelopes._DUMMY, b"")],
    ids=["no flag", "short report", "short dummy"],
)
def test_an_enrolled_client_cannot_sign_what_is_no_envelope(
    parties: Parties, flag: bytes, inner: bytes
) -> None:
    """Else what comes out of the shuffle could be told from the others by its length."""
    signed = signed_to(
        parties.mixer_key.public.sealing,
        flag + inner,
        signing_key=parties.clients[0],
        info=bound(parties, envelopes._LAYER),
    )
    assert refused(opener(parties).open, signed) is Refusal.UNREADABLE


def test_an_enrolled_client_cannot_sign_a_ticket_of_another_length(parties: Parties) -> None:
    """Of two mixers the second gets a ticket with one mark; here its client has signed none, or two."""
    own, signer = parties.mixer_key.public.sealing, parties.clients[0]
    keys = (public_key_bytes(SealingKey.generate()), own)
    second = opener(parties, mixer_keys=keys)
    info = bound(parties, envelopes._TICKET, keys=keys, position=1)
    for marks, good in ((1, True), (0, False), (2, False)):
        ticket = signed_to(own, bytes(envelopes.MARK_BYTES * marks), signing_key=signer, info=info)
        if good:
            assert second.open_ticket(ticket).signer == public_key_bytes(signer)
            continue
        assert refused(second.open_ticket, ticket) is Refusal.UNREADABLE


def test_a_mixer_cannot_pass_an_envelope_on_to_another_mixer_or_round(parties: Parties) -> None:
    cover = cover_of(parties, parties.envelope(REPORT))
    same = {"clients": parties.clients, "analyzer": parties.analyzer}
    for other in (
        Parties(**same, context=parties.context),
        Parties(**same, mixer_key=parties.mixer_key),
    ):
        assert refused(opener(other).open, resealed(other, cover)) is Refusal.UNKNOWN_SIGNER


def windows(data: bytes, width: int) -> set[bytes]:
    return {data[i : i + width] for i in range(len(data) - width + 1)}


def test_envelopes_have_nothing_in_common(parties: Parties) -> None:
    """Reports or dummies, of one client or two: no two share eight bytes, nor do they with what is inside."""
    kinds = [(REPORT, 0), (REPORT, 0), (REPORT, 1), (None, 0), (None, 1), (bytes(SIZE), 0)] * 20
    known = REPORT + bytes(SIZE) + b"".join(parties.enrolled) + parties.analyzer_key
    known += parties.mixer_key.public.sealing + parties.context.token + parties.context.fingerprint
    seen = windows(known, 8)
    for report, client in kinds:
        found = windows(parties.envelope(report, client=client), 8)
        assert not found & seen
        seen |= found


@pytest.mark.parametrize(
    "change",
    [
        {"size": SIZE + 1},
        {"size": SIZE - 1},
        {"analyzer_key": bytes(31)},
        {"mixer_key": b""},
        {"mixer_key": bytes(32)},
        {"analyzer_key": bytes(32)},
        {"mixer_key": "ab" * 16},
    ],
)
def test_what_cannot_be_sealed_is_refused(parties: Parties, change: dict[str, Any]) -> None:
    with pytest.raises(ShuffleError):
        parties.envelope(REPORT, **change)


def test_contexts_that_differ_have_other_digests() -> None:
    runs = ["", "a", "aa", "\ud800", "é"]
    tokens = [bytes(16), bytes(15) + b"a", b"a" + bytes(15)]
    digests = {round_context(run=run, token=token).digest() for run in runs for token in tokens}
    assert len(digests) == len(runs) * len(tokens)
    token = tokens[0]
    others = [{}, {"minimum": 3}, {"minimum": (1 << 63) - 1}, {"reports": 2}, {"reports": (1 << 31) - 1}]
    others += [{"reports": 2, "minimum": 3}, {"fingerprint": b"other" + bytes(27)}]
    assert len({round_context(token=token, **other).digest() for other in others}) == len(others)
