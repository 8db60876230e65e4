"""Fixed features of images: what linear models on them reach."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from measured.parts import ROOT, Sentences, Tables, table
from measured.training import share, without_tuning

FEATURES, MEASURED = "docs/guides/features.md", "docs/reference/benchmarks.md"

_WHITENED = "ChannelWhitening by dead leaves, strength 0.5"
_NORMS = (
    ("`place_normalized`", {1: "place", 2: "place"}),
    ("`group_normalized`", {1: "group, 17 groups", 2: "group, 27 groups"}),
    ("`ChannelWhitening`", {1: _WHITENED, 2: _WHITENED}),
)
_DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
_FIRST_LOOK = "; centred, over root deviation"
_MIRRORED = "averaged with the mirror image; "
_BOTH = (
    "scattering of 2 scales and patch features, 128 filters at 3 x 3 places, of half the weight; each by "
    f"{_WHITENED}"
)
_KINDS = (
    (
        "scattering, both orders",
        f"upright; {_WHITENED}",
        _WHITENED,
        f"places averaged to 4 x 4; {_MIRRORED}{_WHITENED}",
    ),
    (
        "patches",
        f"upright; patch features, 128 filters at 4 x 4 places; {_WHITENED}",
        f"patch features, 128 filters at 4 x 4 places; {_WHITENED}",
        f"{_MIRRORED}patch features, 128 filters at 3 x 3 places and their mirror images; {_WHITENED}",
    ),
    ("both", f"upright; {_BOTH}", _BOTH, f"{_MIRRORED}{_BOTH}"),
)


@cache
def _recorded() -> dict[str, Any]:
    """What was tried for the frontier."""
    found: dict[str, Any] = json.loads((ROOT / "examples/frontier/trials.json").read_text(encoding="utf-8"))
    return found


def _reached(data: str, rows: str, order: int = 2) -> float:
    """Accuracy of the last such trial at ε = 3 with 4,096 clients in each of 200 rounds."""
    found = _recorded()
    *_, accuracy = (
        trial["accuracy"]
        for trial in found["trials"]
        if (trial.get("data", found["data"]), trial["rows"], trial["order"]) == (data, rows, order)
        and (trial.get("epsilon", found["epsilon"]), trial["cohort"], trial["rounds"]) == (3.0, 4_096, 200)
    )
    return float(accuracy)


def _best_bold(rows: list[tuple[str, list[float]]]) -> list[tuple[str, ...]]:
    """Accuracies in per cent, the largest of each column in bold."""
    most = [max(column) for column in zip(*(map(share, values) for _, values in rows), strict=True)]
    return [
        (
            name,
            *(
                f"**{share(v)}**" if share(v) == top else share(v)
                for v, top in zip(values, most, strict=True)
            ),
        )
        for name, values in rows
    ]


def whitening() -> str:
    """Ways to bring rows to one length, by data set and order."""
    columns = [(data, order) for data in _DATA for order in (1, 2)]
    head = (
        "test accuracy, ε = 3",
        *(f"{_DATA[data]}, order 1" if order == 1 else "order 2" for data, order in columns),
    )
    rows = [(name, [_reached(data, by[order], order) for data, order in columns]) for name, by in _NORMS]
    return table(head, _best_bold(rows))


def patches() -> str:
    """Waves, patches and both, by data set."""
    head = ("test accuracy, ε = 3", "MNIST, straightened", "Fashion-MNIST", "CIFAR-10")
    sets = ("mnist", "fashion-mnist", "cifar10")
    rows = [
        (name, [_reached(data, each + _FIRST_LOOK) for data, each in zip(sets, by, strict=True)])
        for name, *by in _KINDS
    ]
    return table(head, _best_bold(rows))


TABLES: Tables = {MEASURED: {"whitening": whitening, "patches": patches}}


def sentences() -> Sentences:
    """Pieces of text with what features reach, and the learning rate for them."""
    pictures = f"places averaged to 4 x 4; {_MIRRORED}"
    whitened = _reached("cifar10", pictures + _WHITENED + _FIRST_LOOK)
    grouped = _reached("cifar10", f"{pictures}group, 27 groups, centred, over root deviation")
    return {
        MEASURED: [f"it is {share(whitened)} where `group_normalized` comes to {share(grouped)}"],
        FEATURES: [without_tuning()],
    }
