"""Accelerate's own script fine-tunes BERT privately after at most ten changed lines, those of the page."""

from __future__ import annotations

import random
import re
import runpy
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from changed_scripts import changed, changed_lines, lines_of_pages

load_file = pytest.importorskip("safetensors.torch").load_file
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.slow

MOST = 10
WORDS = [f"w{number}" for number in range(50)]
SCRIPT = "accelerate/test_utils/scripts/external_deps/test_performance.py"

IMPORT = "from accelerate import Accelerator, DistributedType"
MADE = "optimizer = optimizer_cls(params=model.parameters(), lr=lr)"
PRIVATE = """\
model.bert.embeddings.requires_grad_(False)
engine = PrivacyEngine()
_, optimizer, train_dataloader = engine.make_private_with_epsilon(
    module=model.train(), optimizer=optimizer, data_loader=train_dataloader, wrap_model=False,
    max_grad_norm=0.1, target_epsilon=8.0, target_delta=1e-5, epochs=num_epochs, randomizer="vector-sum",
)"""
ENDED = "accelerator.end_training()"
CHANGES = [
    (IMPORT, f"{IMPORT}\nfrom opacus_shuffle import PrivacyEngine"),
    (MADE, f"{MADE}\n{PRIVATE}"),
    (ENDED, f"{ENDED}\nprint(engine.statement(delta=1e-5))"),
]


def pairs(count: int) -> Any:
    draw = random.Random(1)
    texts = [[" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(count)] for _ in range(2)]
    columns = {"sentence1": texts[0], "sentence2": texts[1], "idx": list(range(count))}
    return datasets.Dataset.from_dict({**columns, "label": [number % 2 for number in range(count)]})


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a small model of random weights where a hub's is asked for, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=5 + len(WORDS), max_position_embeddings=128, **sizes)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertModel(config).save_pretrained(tmp_path / "bert-base-cased")
    tokenizer = transformers.BertTokenizer(str(vocabulary), model_max_length=16)
    tokenizer.save_pretrained(tmp_path / "bert-base-cased")
    scores = SimpleNamespace(add_batch=lambda **_: None, compute=lambda **_: {"accuracy": 0.5})
    evaluate = ModuleType("evaluate")  # downloads what it computes
    evaluate.load = lambda *_: scores  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "evaluate", evaluate)
    made_up = datasets.DatasetDict(train=pairs(64), validation=pairs(8))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: made_up)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield tmp_path
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerates_script(room: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For MRPC, by ``accelerator.prepare`` and ``accelerator.backward``."""
    script = Path(str(distribution("accelerate").locate_file(SCRIPT)))
    monkeypatch.setattr(sys, "argv", [str(script), "--num_epochs", "2"])
    said = lines_of_pages("docs/guides/transformers.md")
    for line in PRIVATE.splitlines():
        page = line.replace("train_dataloader", "loader").replace("epochs=num_epochs", "epochs=3").strip()
        assert page in said
    after = changed(script.read_text(), CHANGES)
    assert changed_lines(script.read_text(), after) <= MOST
    (room / "changed.py").write_text(after)
    runpy.run_path(str(room / "changed.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert f"  {2 * 4} × a sum with coins" in printed
    (upper,) = re.findall(r"^  ε ∈ \[[\d.]+, ([\d.]+)\] at δ = 1e-05", printed, re.MULTILINE)
    assert 0 < float(upper) <= 8.0
    saved = transformers.BertForSequenceClassification.from_pretrained("bert-base-cased").state_dict()
    trained = load_file(room / "model.safetensors")
    assert trained.keys() == saved.keys()
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.equal(trained[name], saved[name])
