"""The claims of the artifact, and how long their commands took."""

from __future__ import annotations

import importlib.util
import json
import sys

from measured.parts import ROOT, Tables, table

PAGE = "ARTIFACT-APPENDIX.md"


def claims() -> str:
    """Claim, command and times."""
    spec = importlib.util.spec_from_file_location("artifact_claims", ROOT / "artifact" / "claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks for it there
    spec.loader.exec_module(module)
    times = json.loads((ROOT / "artifact" / "times.json").read_text(encoding="utf-8"))

    def took(name: str) -> tuple[str, str]:
        if name not in times:
            return "", ""
        found = times[name]
        assert found["held"], name
        return tuple(f"{found[which]:,.0f} s" for which in ("seconds", "processor_seconds"))

    head = ("claim", "command", "on the clock", "of processors")
    return table(
        head,
        ((f"[{each.says}]({each.page})", f"`{each.command}`", *took(each.name)) for each in module.CLAIMS),
    )


TABLES: Tables = {PAGE: {"claims": claims}}
