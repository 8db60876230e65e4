"""Others' programs that fine-tune a language model train privately after at most ten changed lines.

Accelerate's is in its package. The notebooks of Opacus and of Hugging Face are in no package, so they are
read from the folder ``FINE_TUNING_NOTEBOOKS``, where there is one:
``tutorials/building_text_classifier.ipynb`` of github.com/meta-pytorch/opacus, and
``transformers_doc/en/pytorch/training.ipynb`` of github.com/huggingface/notebooks.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from changed_scripts import Change, changed, changed_lines, lines_of_pages

load_file = pytest.importorskip("safetensors.torch").load_file
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.slow

MOST = 10
WORDS = [f"w{number}" for number in range(50)]
TOLD = "print(engine.statement(delta=1e-5))"


def texts(count: int, *, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(count)]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a small model of random weights where a hub's is asked for, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=5 + len(WORDS), max_position_embeddings=128, **sizes)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    for name in ("bert-base-cased", "google-bert/bert-base-cased"):
        transformers.BertModel(config).save_pretrained(tmp_path / name)
        transformers.BertTokenizer(str(vocabulary), model_max_length=16).save_pretrained(tmp_path / name)
    scores = SimpleNamespace(
        add_batch=lambda **_: None, compute=lambda **_: {"accuracy": 0.5}
    )  # evaluate downloads what it computes
    evaluate = ModuleType("evaluate")
    evaluate.load = lambda *_: scores  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "evaluate", evaluate)
    yield tmp_path
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def notebook(name: str, *, until: str = "\0") -> str:
    """The program that the cells of a notebook make up."""
    folder = os.environ.get("FINE_TUNING_NOTEBOOKS")
    if folder is None or not (Path(folder) / name).exists():
        pytest.skip(f"FINE_TUNING_NOTEBOOKS has no {name}")
    cells = json.loads((Path(folder) / name).read_text())["cells"]
    code = []
    for cell in cells:
        text = "".join(cell["source"])
        if text.startswith(until):
            break
        if cell["cell_type"] == "code":
            code += [line for line in text.splitlines() if not line.startswith("!")]  # pip
    return "\n".join(code) + "\n"


def run(before: str, changes: list[Change], folder: Path) -> dict[str, Any]:
    """What a program has in the end, with changed lines."""
    after = changed(before, changes)
    assert changed_lines(before, after) <= MOST
    (folder / "changed.py").write_text(after)
    return runpy.run_path(str(folder / "changed.py"), run_name="__main__")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[int], None]:
    """Checks that so many rounds were accounted for, within ε = 8."""

    def check(rounds: int) -> None:
        printed = capsys.readouterr().out
        assert f"  {rounds} × a sum with coins" in printed
        (upper,) = re.findall(r"^  ε ∈ \[[\d.]+, ([\d.]+)\] at δ = 1e-05", printed, re.MULTILINE)
        assert 0 < float(upper) <= 8.0

    return check


def test_accelerates_script(room: Path, told: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT is fine-tuned for MRPC by ``accelerator.prepare`` and ``accelerator.backward``."""
    place = "accelerate/test_utils/scripts/external_deps/test_performance.py"
    script = Path(str(distribution("accelerate").locate_file(place)))

    def pairs(count: int) -> Any:
        columns = {"sentence1": texts(count, seed=1), "sentence2": texts(count, seed=2)}
        labels = [number % 2 for number in range(count)]
        return datasets.Dataset.from_dict({**columns, "label": labels, "idx": list(range(count))})

    made_up = datasets.DatasetDict(train=pairs(64), validation=pairs(8))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: made_up)
    monkeypatch.setattr(sys, "argv", [str(script), "--num_epochs", "2"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = "optimizer = optimizer_cls(params=model.parameters(), lr=lr)"
    private = """\
model.bert.embeddings.requires_grad_(False)
engine = PrivacyEngine()
_, optimizer, train_dataloader = engine.make_private_with_epsilon(
    module=model.train(), optimizer=optimizer, data_loader=train_dataloader, wrap_model=False,
    max_grad_norm=0.1, target_epsilon=8.0, target_delta=1e-5, epochs=num_epochs, randomizer="vector-sum",
)"""
    changes = [
        (
            "from accelerate import Accelerator, DistributedType",
            "from accelerate import Accelerator, DistributedType\nfrom opacus_shuffle import PrivacyEngine",
        ),
        (made, f"{made}\n{private}"),
        ("accelerator.end_training()", f"accelerator.end_training()\n{TOLD}"),
    ]
    said = lines_of_pages("docs/guides/transformers.md")
    for line in private.splitlines():
        page = line.replace("train_dataloader", "loader").replace("epochs=num_epochs", "epochs=3").strip()
        assert page in said
    run(script.read_text(), changes, room)
    told(2 * 4)
    saved = transformers.BertForSequenceClassification.from_pretrained("bert-base-cased").state_dict()
    trained = load_file(room / "model.safetensors")
    assert trained.keys() == saved.keys()
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.equal(trained[name], saved[name])


def test_hugging_faces_page(room: Path, told: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT is fine-tuned for reviews by a ``Trainer``."""

    def reviews(count: int) -> Any:
        return datasets.Dataset.from_dict(
            {"text": texts(count, seed=count), "label": [number % 5 for number in range(count)]}
        )

    made_up = datasets.DatasetDict(train=reviews(64), test=reviews(8))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: made_up)
    monkeypatch.setattr("huggingface_hub.login", lambda: None)
    monkeypatch.setattr(transformers.Trainer, "push_to_hub", lambda _: None)
    changes = [
        (
            "from transformers import Trainer",
            "from opacus_shuffle.transformers import PrivacyArguments, PrivateTrainer",
        ),
        ("trainer = Trainer(", "trainer = PrivateTrainer("),
        (
            "compute_metrics=compute_metrics,",
            "compute_metrics=compute_metrics,\nprivacy=PrivacyArguments("
            'target_epsilon=8.0, target_delta=1e-5, randomizer="vector-sum"),',
        ),
        ("push_to_hub=True,", "per_device_train_batch_size=16, report_to=[], use_cpu=True,"),
        ("trainer.push_to_hub()", f"trainer.push_to_hub()\n{TOLD.replace('engine', 'trainer.engine')}"),
    ]
    said = lines_of_pages("docs/guides/transformers.md")
    for _, new in changes[:3]:
        assert {line.strip() for line in new.splitlines()} - {"compute_metrics=compute_metrics,"} <= said
    trainer = run(notebook("training.ipynb"), changes, room)["trainer"]
    told(3 * 4)
    assert trainer.evaluate()["eval_accuracy"] == 0.5


class _Example(SimpleNamespace):
    pass


def _features(examples: Any, *, tokenizer: Any, label_list: Any, max_length: int, **_: Any) -> Any:
    """What Transformers did up to version 4: the notebook is older than version 5."""
    encoded = tokenizer(
        [each.text_a for each in examples],
        [each.text_b for each in examples],
        padding="max_length",
        truncation=True,
        max_length=max_length,
    )
    return [
        SimpleNamespace(label=label_list.index(each.label), **{name: encoded[name][i] for name in encoded})
        for i, each in enumerate(examples)
    ]


def test_opacuss_notebook(room: Path, told: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer of BERT is fine-tuned for SNLI, as far as the notebook goes without ghost clipping."""
    pytest.importorskip("pandas")
    kinds = ("contradiction", "entailment", "neutral")

    def retrieve(_: str, name: str) -> None:
        with zipfile.ZipFile(name, "w") as packed:
            for part, count in (("train", 128), ("dev", 8)):
                rows = zip(texts(count, seed=1), texts(count, seed=2), kinds * count, strict=False)
                lines = ["\t".join(["sentence1", "sentence2", "gold_label"]), *map("\t".join, rows)]
                packed.writestr(f"snli_1.0/snli_1.0_{part}.txt", "\n".join(lines))

    monkeypatch.setattr(urllib.request, "urlretrieve", retrieve)
    for name, found in {
        "transformers.data.processors": {},
        "transformers.data.processors.utils": {"InputExample": _Example},
        "transformers.data.processors.glue": {"glue_convert_examples_to_features": _features},
        "tqdm.notebook": {"tqdm": lambda rows: rows},
        "IPython.display": {"Image": lambda **_: None},
    }.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(found)
    import_ = ("from opacus import PrivacyEngine", "from opacus_shuffle import PrivacyEngine")
    radius = "max_grad_norm=MAX_GRAD_NORM,"
    changes = [import_, (radius, f'{radius}\nrandomizer="vector-sum",')]
    trained = run(notebook("building_text_classifier.ipynb", until="## Ghost Clipping"), changes, room)
    engine = trained["privacy_engine"]
    assert len(engine.accountant) == trained["EPOCHS"] * 4
    assert 7.0 < engine.get_epsilon(trained["DELTA"]) <= trained["EPSILON"]
    assert trained["trainable_params"] == engine._optimizers[0].num_parameters
