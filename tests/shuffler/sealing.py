"""What tests of envelopes and mixers begin with: a mixer's, an analyzer's and clients' keys, and a round."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shuffle_plugins.shuffler import Mixer, RoundContext, SpentTokens, seal
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServiceKey,
    SigningKey,
    generate_sealing_key,
    generate_service_key,
    generate_signing_key,
    public_key_bytes,
)

SIZE = 24


def round_context(**changes: Any) -> RoundContext:
    return RoundContext(
        **{"run": "test", "token": os.urandom(16), "fingerprint": bytes(range(32)), **changes}
    )


@dataclass(kw_only=True)
class Parties:
    """Everybody of a round, and the round."""

    mixer_key: ServiceKey = field(default_factory=generate_service_key)
    analyzer: SealingKey = field(default_factory=generate_sealing_key)
    clients: list[SigningKey] = field(default_factory=lambda: [generate_signing_key() for _ in range(6)])
    context: RoundContext = field(default_factory=round_context)

    @property
    def enrolled(self) -> frozenset[bytes]:
        return frozenset(map(public_key_bytes, self.clients))

    @property
    def analyzer_key(self) -> bytes:
        return public_key_bytes(self.analyzer)

    def envelope(self, report: bytes | None, *, client: int = 0, **changes: Any) -> bytes:
        """An honest client's envelope, but for ``changes`` of what it is sealed with."""
        return seal(
            report,
            **{
                "size": SIZE,
                "context": self.context,
                "analyzer_key": self.analyzer_key,
                "mixer_key": self.mixer_key.public.sealing,
                "signing_key": self.clients[client],
                **changes,
            },
        )

    def mixer(self, state: Path, *, minimum: int = 2) -> Mixer:
        """The mixer, with a state file that is made if need be."""
        if not state.exists():
            SpentTokens.create(state, public_key=self.mixer_key.public.sealing)
        return Mixer(key=self.mixer_key, enrolled=self.enrolled, minimum=minimum, state=state)
