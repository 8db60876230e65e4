"""What tests of envelopes and mixers begin with: a mixer's, an analyzer's and clients' keys, and a round."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shuffle_plugins.shuffler import BatchRequest, MixedStatement, Mixer, RoundContext, SpentTokens
from shuffle_plugins.shuffler.envelopes import open_reports, part_sizes, seal
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServiceKey,
    ServicePublicKey,
    SigningKey,
    public_key_bytes,
)
from shuffle_plugins.shuffler.mixer import BatchSpool

SIZE = 24


def round_context(**changes: Any) -> RoundContext:
    return RoundContext(
        **{"run": "test", "token": os.urandom(16), "fingerprint": bytes(range(32)), **changes}
    )


@dataclass(kw_only=True)
class Parties:
    """Everybody of a round, and the round."""

    mixer_key: ServiceKey = field(default_factory=ServiceKey.generate)
    analyzer: SealingKey = field(default_factory=SealingKey.generate)
    clients: list[SigningKey] = field(default_factory=lambda: [SigningKey.generate() for _ in range(6)])
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


@dataclass(kw_only=True)
class Row(Parties):
    """As many mixers as there are keys, each with its own folder, and a server that does as it is told."""

    folder: Path
    keys: list[ServiceKey] = field(default_factory=lambda: [ServiceKey.generate()])
    minimum: int = 2

    def __post_init__(self) -> None:
        self.mixer_key = self.keys[0]
        for position, key in enumerate(self.keys):
            SpentTokens.create(self.folder / f"state{position}", public_key=key.public.sealing)

    @property
    def mixers(self) -> tuple[ServicePublicKey, ...]:
        return tuple(key.public for key in self.keys)

    @property
    def sealing_keys(self) -> list[bytes]:
        return [key.public.sealing for key in self.keys]

    def at(self, position: int = 0) -> Mixer:
        return Mixer(
            key=self.keys[position],
            enrolled=self.enrolled,
            minimum=self.minimum,
            state=self.folder / f"state{position}",
        )

    def spool(self, position: int = 0, **options: Any) -> BatchSpool:
        chosen = {"mixer": self.at(position), "cascade": self.mixers, **options}
        return BatchSpool(self.folder / f"spool{position}", **chosen)

    def envelopes(self, *reports: bytes | None) -> list[bytes]:
        return [
            self.envelope(report, client=i, mixer_key=self.sealing_keys) for i, report in enumerate(reports)
        ]

    def parts(self, envelopes: Sequence[bytes]) -> list[list[bytes]]:
        """The first layers, and the tickets of each later mixer."""
        parts, start = [], 0
        for size in part_sizes(SIZE, mixers=len(self.keys)):
            parts.append([envelope[start : start + size] for envelope in envelopes])
            start += size
        assert {len(envelope) for envelope in envelopes} == {start}
        return parts

    def items(self, layers: Sequence[bytes], envelopes: Sequence[bytes], *, position: int) -> list[bytes]:
        """What a mixer gets: layers, and with them the tickets of the clients' envelopes."""
        tickets = self.parts(envelopes)[position] if position else [b""] * len(layers)
        return [layer + ticket for layer, ticket in zip(layers, tickets, strict=True)]

    def request(self, items: Sequence[bytes], **changes: Any) -> BatchRequest:
        values = {"context": self.context, "analyzer_key": self.analyzer_key, "mixers": self.mixers}
        return BatchRequest.of(items, **{**values, **changes})

    def step(
        self, items: Sequence[bytes], *, previous: tuple[MixedStatement, ...] = (), piece: int = 2
    ) -> tuple[list[bytes], MixedStatement]:
        """One mixer's work, its items in pieces."""
        request = self.request(items, previous=previous)
        spool = self.spool(len(previous))
        said = None
        for first in range(0, len(items), piece):
            assert said is None
            said = spool.put(request, items[first : first + piece], first=first)
        assert said is not None
        request.check_said(said)
        taken: list[bytes] = []
        while len(taken) < said.count:
            taken += spool.take(request, first=len(taken), most=piece)
        request.check_outputs(taken, said)
        return taken, said

    def mixed(self, envelopes: Sequence[bytes], **changes: Any) -> tuple[MixedStatement, list[bytes]]:
        """A single mixer's work in one piece: what it says, and the reports in its order."""
        request = self.request(envelopes, **changes)
        said, items = self.spool().mix(request, envelopes)
        request.check_said(said)
        request.check_outputs(items, said)
        return said, self.opened(items)

    def opened(self, items: Sequence[bytes]) -> list[bytes]:
        return open_reports(items, context=self.context, analyzer_private_key=self.analyzer)
