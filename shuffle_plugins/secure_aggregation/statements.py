"""What an aggregator signs: which envelopes are good, what their seeds add up to, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shuffle_plugins.secure_aggregation.sharing import SumTerms
from shuffle_plugins.shuffler import Refusal, Statement
from shuffle_plugins.shuffler.statements import encoded_number, positions, statement

_REQUEST = b"shuffle-plugins/1 aggregator request"
_CHECKED = b"shuffle-plugins/1 aggregator checked"
_VERIFIED = b"shuffle-plugins/1 aggregator verified"
_SUM = b"shuffle-plugins/1 aggregator sum"
_REFUSED = b"shuffle-plugins/1 aggregator refused"


def aggregation_digest(
    *,
    step: str,
    terms: SumTerms,
    minimum: int,
    commitments: Sequence[bytes],
    envelopes: Sequence[bytes],
    further: Sequence[bytes] = (),
) -> bytes:
    """Digest of a request, 32 bytes.

    It covers whether envelopes are to be checked or their seeds added up, and the order of the envelopes.
    """
    inputs = [statement(_REQUEST, *parts).digest for parts in (commitments, envelopes)]
    asked = (step.encode(), terms.digest(), encoded_number(minimum))
    return statement(_REQUEST, *asked, *inputs, *further).digest


def checked_statement(*, request: bytes, rejected: Mapping[int, Refusal]) -> Statement:
    """An aggregator's statement that all envelopes of a request are good, but for some."""
    return statement(_CHECKED, request, *positions(rejected))


def verified_statement(
    *, request: bytes, rejected: Mapping[int, Refusal], verifier_shares: Sequence[bytes]
) -> Statement:
    """An aggregator's statement of its verifier shares of a request's good envelopes, in their order."""
    return statement(_VERIFIED, request, *positions(rejected), *verifier_shares)


def sum_statement(*, request: bytes, rejected: Mapping[int, Refusal], total: bytes) -> Statement:
    """An aggregator's statement of what the good envelopes' seeds add up to, expanded."""
    return statement(_SUM, request, *positions(rejected), total)


def aggregation_refusal(*, request: bytes, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    """An aggregator's statement that it gives nothing for a request, and why."""
    return statement(_REFUSED, request, str(code).encode(), *positions(rejected))
