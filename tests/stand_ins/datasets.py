"""In place of Hugging Face's datasets, for scripts of others: it replaces a download, and nothing else.

Reviews are made up: good ones draw half of their words from the upper half of the vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = [f"w{number}" for number in range(1000)]


def write_vocabulary(folder: Path) -> None:
    """What a tokenizer reads instead of a vocabulary from a hub: every word is one token."""
    folder.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))


def _reviews(count: int) -> dict[str, list[Any]]:
    draw, half = random.Random(count), len(WORDS) // 2
    labels = [draw.randrange(2) for _ in range(count)]
    texts = [
        " ".join(
            WORDS[draw.randrange(half) + half * (label and draw.randrange(2))]
            for _ in range(draw.randint(5, 40))
        )
        for label in labels
    ]
    return {"text": texts, "label": labels}


class _Reviews(dict[str, dict[str, list[Any]]]):
    def map(self, function: Callable[[dict[str, Any]], Any], *, batched: bool) -> _Reviews:
        assert batched
        return _Reviews({name: {**part, **function(part)} for name, part in self.items()})

    def set_format(self, *, type: str, columns: list[str]) -> None:
        assert type == "torch"
        for name, part in self.items():
            rows = zip(*(part[column] for column in columns), strict=True)
            self[name] = [  # type: ignore[assignment]
                dict(zip(columns, map(torch.tensor, row), strict=True)) for row in rows
            ]


def load_dataset(name: str, *, cache_dir: str) -> _Reviews:
    """1,000 reviews to train on, 200 to test on."""
    assert name == "imdb"
    return _Reviews(train=_reviews(1000), test=_reviews(200))
