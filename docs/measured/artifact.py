"""The claims of the artifact, and how long their commands took."""

from __future__ import annotations

import json

from artifact.claims import CLAIMS, TIMES
from measured.parts import Tables, table


def claims() -> str:
    """Claim, command and times."""
    times = json.loads(TIMES.read_text(encoding="utf-8"))

    def took(name: str) -> tuple[str, ...]:
        found = times.get(name)
        if found is None:
            return "", ""
        assert found["held"], name
        return tuple(f"{found[which]:,.0f} s" for which in ("seconds", "processor_seconds"))

    head = ("claim", "command", "on the clock", "of processors")
    return table(
        head,
        ((f"[{each.says}]({each.page})", f"`{each.command}`", *took(each.name)) for each in CLAIMS),
    )


TABLES: Tables = {"ARTIFACT-APPENDIX.md": {"claims": claims}}
