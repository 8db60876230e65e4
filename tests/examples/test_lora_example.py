"""``examples/lora``: adapters on a small random BERT are trained privately, and plain PEFT loads them."""

from __future__ import annotations

import copy
import io
import tarfile
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from example_scripts import example_folder
from peft import PeftModel
from transformers import AutoModel, BertConfig, MPNetConfig


@pytest.fixture(scope="module")
def lora():
    with example_folder("lora", "model", "page", "run", "snippets", "train") as found:
        yield found


@pytest.fixture(params=[BertConfig, MPNetConfig])
def task(lora, request):
    """A classifier on two random layers, of which the upper one is trained, and 80 texts of 3 to 9 tokens."""
    torch.manual_seed(0)
    config = request.param(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    classifier = lora.model.SentenceClassifier(AutoModel.from_config(config), layers=1)
    texts = [torch.randint(4, 40, (3 + number % 7,)).tolist() for number in range(80)]
    labels = [int(text[1] > 20) for text in texts]
    return SimpleNamespace(
        classifier=classifier, phrases=lora.model.FrozenStates(classifier, texts, labels), texts=texts
    )


def few(lora):
    return replace(
        lora.train.SETTINGS, rank=2, cohort=40, steps=3, head_cohort=40, head_steps=4, learning_rate=0.05
    )


@pytest.mark.parametrize("name", ["sum", pytest.param("seed", marks=pytest.mark.slow), "central"])
def test_adapters_are_trained_within_epsilon_and_load_in_plain_peft(lora, task, name, tmp_path) -> None:
    untouched = copy.deepcopy(task.classifier)
    arm = lora.train.ARMS[name](epsilon=8.0)
    model, upper = lora.train.train(task.classifier, task.phrases, arm, of=few(lora))
    lower, spent = arm.epsilon()
    assert 0.9 * spent < lower <= spent <= 8.0
    if name != "central":
        assert len(arm.engine.accountant) == 4 + 3
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    assert {key.split(".")[-3] for key in trained} == {"lora_A", "lora_B", "modules_to_save"}
    assert all(p.abs().max() > 0 for p in trained.values())  # lora_B and the head begin with zeros

    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(untouched, tmp_path).eval()
    tokens, mask = torch.tensor(task.texts[:1]), torch.ones(1, 3, dtype=torch.int64)
    with torch.no_grad():
        logits = model.eval()(tokens, mask)
        torch.testing.assert_close(loaded(tokens, mask), logits, rtol=0, atol=0)
        with loaded.disable_adapter():
            assert not torch.equal(loaded(tokens, mask), logits)
    assert 0 <= lora.model.accuracy(upper, task.phrases) <= 1


def test_cached_states_give_the_logits_of_the_whole_model(lora, task) -> None:
    with torch.no_grad():
        task.classifier.head.weight.normal_()
    model = lora.model.with_adapters(task.classifier, rank=2, alpha=4.0).eval()
    for key, p in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(p, std=0.3)
    rows = sorted(task.texts, key=len)
    hidden, mask, _ = lora.model.padded([task.phrases[number] for number in range(80)])
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.tensor(row)
    with torch.no_grad():
        cached = lora.model.UpperLayers(model).eval()(hidden, mask)
        torch.testing.assert_close(cached, model(tokens, mask.long()), rtol=0, atol=0.05)  # bfloat16
        assert cached.std() > 0.2


def test_the_page_is_that_of_the_results(lora) -> None:
    runs = lora.run.done(lora.run.RESULTS)
    assert lora.page.PAGE.read_text() == "\n".join(lora.page.text(runs)) + "\n"
    assert all(each["epsilon"][1] <= each["target_epsilon"] for each in runs if each["arm"] != "none")


def test_a_grid_has_one_of_everything_before_the_second_of_anything(lora, tmp_path) -> None:
    cells = list(lora.run.cells(["sum", "none"], [3.0, 1.0], 2))
    assert cells == [
        *(("sum", 3.0, 0), ("none", None, 0), ("sum", 1.0, 0)),
        *(("sum", 3.0, 1), ("none", None, 1), ("sum", 1.0, 1)),
    ]
    lora.run.keep(tmp_path / "results.json", [{"arm": "sum"}])
    assert lora.run.done(tmp_path / "results.json") == [{"arm": "sum"}]


def test_snippets_of_the_archive_become_two_files_that_the_reader_takes(lora, tmp_path) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name in lora.snippets.FILES:
            rows = "".join(f"{n}\t{(-1) ** n * 0.5}\tText {name} {n}\n" for n in range(600)).encode()
            member = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            member.size = len(rows)
            archive.addfile(member, io.BytesIO(rows))
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as package:
        package.writestr(lora.snippets.ARCHIVE, inner.getvalue())
    lora.snippets.main(tmp_path / "package.zip", tmp_path / "data")
    parts = [lora.train.read(tmp_path / "data" / f"{name}.tsv.gz") for name in ("train", "dev")]
    assert [len(texts) for texts, _ in parts] == [300, lora.snippets.HELD_OUT]
    texts = parts[0][0] + parts[1][0]
    assert len(set(texts)) == 1800
    assert all(
        (int(t.split()[-1]) % 2 == 0) == bool(y)
        for t, y in zip(texts, parts[0][1] + parts[1][1], strict=True)
    )
