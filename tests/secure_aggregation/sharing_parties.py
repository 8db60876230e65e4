"""The parties of a secure sum in one process: clients with keys, aggregators with files, a server's round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shuffle_plugins.secure_aggregation import (
    Aggregator,
    ResidueLayout,
    Sealed,
    SumTerms,
    commitment,
    seal_seed,
    share,
)
from shuffle_plugins.secure_aggregation.sharing import Shared
from shuffle_plugins.shuffler import RoundContext, SpentTokens
from shuffle_plugins.shuffler.keys import ServiceKey, SigningKey, public_key_bytes

CHECK_SEED = bytes(range(32))
LARGEST = 9


def round_context(**changes: Any) -> RoundContext:
    values: dict[str, Any] = {"run": "test", "token": bytes(16), "fingerprint": bytes(32)}
    return RoundContext(**{**values, **changes})


@dataclass
class SumParties:
    """Some clients and aggregators, and what each client sent in one round."""

    folder: Path
    clients: int = 5
    aggregators: int = 2
    size: int = 7
    minimum: int = 3
    keys: list[ServiceKey] = field(init=False)
    signing_keys: list[SigningKey] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [ServiceKey.generate() for _ in range(self.aggregators)]
        self.signing_keys = [SigningKey.generate() for _ in range(self.clients)]
        self.enrolled = frozenset(map(public_key_bytes, self.signing_keys))
        for i, key in enumerate(self.keys):
            SpentTokens.create(self.folder / f"rounds{i}", public_key=key.public.sealing)
        self.counts = np.random.default_rng(3).integers(0, LARGEST + 1, (self.clients, self.size))
        self.terms = self.terms_of()

    def terms_of(self, **changes: Any) -> SumTerms:
        layout = ResidueLayout.of_sum(size=self.size, largest=LARGEST, clients=self.clients)
        values: dict[str, Any] = {
            "context": round_context(),
            "layout": layout,
            "aggregators": tuple(key.public.sealing for key in self.keys),
        }
        return SumTerms(**{**values, **changes})

    def aggregator(self, position: int = 0, **changes: Any) -> Aggregator:
        """An aggregator as it is started: its files are read."""
        values: dict[str, Any] = {
            "key": self.keys[position],
            "enrolled": self.enrolled,
            "minimum": self.minimum,
            "state": self.folder / f"rounds{position}",
        }
        return Aggregator(**{**values, **changes})

    def sent(
        self, client: int, *, terms: SumTerms | None = None, signing_key: SigningKey | None = None
    ) -> tuple[Shared, list[Sealed]]:
        """A client's share, and what the server passes on to each aggregator."""
        terms = terms or self.terms
        shared = share(
            self.counts[client], layout=terms.layout, aggregators=self.aggregators, check_seed=CHECK_SEED
        )
        signing_key = signing_key or self.signing_keys[client]
        return shared, self.sealed(shared.share.to_bytes(), shared.seeds, signing_key, terms=terms)

    def sealed(
        self,
        share: bytes,
        secrets: Sequence[bytes],
        signing_key: SigningKey,
        *,
        terms: SumTerms | None = None,
    ) -> list[Sealed]:
        """What the server passes on of a client to each aggregator."""
        envelopes = [
            seal_seed(
                secret,
                terms=terms or self.terms,
                share=share,
                aggregator_key=key.public.sealing,
                signing_key=signing_key,
            )
            for secret, key in zip(secrets, self.keys, strict=True)
        ]
        return [Sealed(commitment(share), envelope) for envelope in envelopes]
