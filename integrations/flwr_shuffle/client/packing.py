"""How a client packs its report: as it is, sealed to a mixer, or shared with aggregators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flwr_shuffle.client.limits import ClientRefused, ClientSettings
from flwr_shuffle.messages import ClientRefusal, Instruction, context_of, plain_payload
from flwr_shuffle.shared_terms import digest_of
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.secure_aggregation import VerifiedTerms, seal_seed, share, share_with_proof
from shuffle_plugins.shuffler import ShuffleError, SigningKey, keys, seal

Packing = Callable[[Reports | None], bytes]
"""Makes a payload of a client's reports, or of None for a dummy; both payloads have the same length."""


def packing(
    settings: ClientSettings, instruction: Instruction, mechanism: PrivateSum, *, dim: int, size: int
) -> Packing:
    """How this client packs its report of a round.

    Args:
        settings: which keys its operator has pinned.
        instruction: of the round.
        mechanism: makes the report.
        dim: length of the vector that is reported.
        size: bytes of a report.

    Raises:
        ClientRefused: if the server asks for another way than the pinned keys allow, or a key cannot be read
            or sealed to. What is returned refuses nothing more, so a round can be charged before it is used.
    """
    if instruction.shared is not None:
        return _shared(settings, instruction, mechanism, dim=dim)
    if instruction.sealed:
        return _sealed(settings, instruction, dim=dim, size=size)
    if settings.mixer_keys:
        raise ClientRefused(ClientRefusal.UNSEALED)
    if settings.aggregator_keys:
        raise ClientRefused(ClientRefusal.UNSHARED)
    whole = size * instruction.samples_per_client
    return lambda reports: plain_payload(_bytes(reports), size=whole)


def _sealed(settings: ClientSettings, instruction: Instruction, *, dim: int, size: int) -> Packing:
    if not settings.mixer_keys:
        raise ClientRefused(ClientRefusal.NO_MIXER_KEY)
    if instruction.mixers != len(settings.mixer_keys):
        raise ClientRefused(ClientRefusal.OTHER_MIXERS)
    signing_key, context = _signing_key(settings), context_of(instruction, dim=dim)

    def pack(report: Reports | None) -> bytes:
        return seal(
            _bytes(report),
            size=size,
            context=context,
            analyzer_key=instruction.analyzer_key,
            mixer_key=settings.mixer_keys,
            signing_key=signing_key,
        )

    try:
        pack(None)
    except ShuffleError as error:
        raise ClientRefused(ClientRefusal.BAD_ANALYZER_KEY) from error
    return pack


def _shared(
    settings: ClientSettings, instruction: Instruction, mechanism: PrivateSum, *, dim: int
) -> Packing:
    """The client's share, then what is sealed to each aggregator. There are no dummies: None is all zeros."""
    shared, pinned, counts = instruction.shared, settings.aggregator_keys, mechanism.counts
    assert shared is not None
    if not pinned:
        raise ClientRefused(ClientRefusal.NO_AGGREGATORS)
    if shared.aggregators != digest_of(pinned):
        raise ClientRefused(ClientRefusal.OTHER_AGGREGATORS)
    if counts is None or not mechanism.must_be_summed:  # who sits out must send noise, not a dummy
        raise ClientRefused(ClientRefusal.NO_COUNTS)
    signing_key = _signing_key(settings)
    try:
        terms = shared.of_round(context_of(instruction, dim=dim), counts=counts, aggregators=pinned)
        if isinstance(terms, VerifiedTerms):
            _ = terms.prio3  # refuses vectors that it has no proof for
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_INSTRUCTION) from error
    try:
        for key in pinned:  # of nothing: a share with its proof takes as long as the rest of a round
            seal_seed(b"", terms=terms, share=b"", aggregator_key=key, signing_key=signing_key)
    except ShuffleError as error:
        raise ClientRefused(ClientRefusal.BAD_ANALYZER_KEY) from error

    def pack(report: Reports | None) -> bytes:
        mine: NDArray[np.int64] = (
            np.zeros(counts.size, np.int64)
            if report is None
            else mechanism.total(report).cpu().numpy() - counts.lowest
        )
        if isinstance(terms, VerifiedTerms):
            data, secrets = share_with_proof(mine, terms=terms)
        else:
            split = share(mine, layout=terms.layout, aggregators=len(pinned), check_seed=shared.check_seed)
            data, secrets = split.share.to_bytes(), split.seeds
        envelopes = (
            seal_seed(secret, terms=terms, share=data, aggregator_key=key, signing_key=signing_key)
            for secret, key in zip(secrets, pinned, strict=True)
        )
        return b"".join([data, *envelopes])

    return pack


def _bytes(reports: Reports | None) -> bytes | None:
    """The reports one after another, each as it would be sent by itself."""
    return None if reports is None else b"".join(reports.each_to_bytes())


def _signing_key(settings: ClientSettings) -> SigningKey:
    if settings.signing_key_file is None:
        raise ClientRefused(ClientRefusal.BAD_SIGNING_KEY)
    try:
        return keys.read_signing_key(settings.signing_key_file)
    except ShuffleError as error:
        raise ClientRefused(ClientRefusal.BAD_SIGNING_KEY) from error
