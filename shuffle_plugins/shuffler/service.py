"""What an organisation that handles sealed batches holds: keys, enrolled clients, spent rounds."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.errors import ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServiceKey, ServicePublicKey
from shuffle_plugins.shuffler.statements import Statement
from shuffle_plugins.shuffler.tokens import SpentTokens


class BatchService:
    """Takes the sealed envelopes of a round's clients, and serves each round once.

    Args:
        key: the service's private keys; clients and the server pin the public ones.
        enrolled: public signing keys of the clients that may take part.
        minimum: fewest reports that are given out, or added up; at least 2.
        state: the file of spent rounds that was made with the key (:meth:`SpentTokens.create`).

    Attributes:
        role: what the service does, as it stands in its signed statement of who it is.

    Raises:
        ShuffleError: if nobody is enrolled, or the state file is missing or belongs to another key.
        ValueError: if the minimum is less than 2.
    """

    role: ClassVar[str]

    def __init__(
        self, *, key: ServiceKey, enrolled: frozenset[bytes], minimum: int, state: Path | str
    ) -> None:
        if not enrolled or any(len(client) != KEY_BYTES for client in enrolled):
            raise ShuffleError(
                f"the {self.role} needs enrolled clients, each by a public key of {KEY_BYTES} bytes"
            )
        self._key = key
        self._enrolled = frozenset(enrolled)
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self._spent = SpentTokens(state, public_key=key.public.sealing)

    @property
    def minimum(self) -> int:
        """Fewest reports that are given out, or added up."""
        return self._minimum

    @property
    def public_key(self) -> ServicePublicKey:
        """The key that clients and the server pin."""
        return self._key.public

    def sign(self, statement: Statement) -> bytes:
        """The service's signature of a statement, 64 bytes; who pinned its public key can check it."""
        return statement.signed(self._key.signing)
