"""Hugging Face's Trainer and Accelerate train privately, or say why not."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError
from opacus_transparent import Transparent
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import shuffle_plugins as sp
from shuffle_plugins.protocols import VectorSum

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
from opacus_shuffle.transformers import PrivacyArguments, PrivateTrainer  # noqa: E402
from opacus_shuffle.transformers.trainer import (  # noqa: E402
    _CLASSES,
    _KINDS,
    _kind_of,
    _losses_of_items,
    _of_record,
)

pytestmark = pytest.mark.slow  # to load transformers takes seconds

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
N, LENGTH, WORDS = 40, 6, 30


def classifier(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "num_labels": 2, **SIZES, **CALM}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes | options))


def language_model() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
    calm = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **calm, **special))


def texts(*, count: int = N) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, WORDS, (count, LENGTH), generator=draw)
    ones = torch.ones(LENGTH, dtype=torch.long)
    return [{"input_ids": row, "attention_mask": ones, "labels": (row[0] > 15).long()} for row in tokens]


def sentences() -> list[dict[str, Tensor]]:
    """Records with different numbers of tokens that count, which one mean over all tokens would mix."""
    found = []
    for number, text in enumerate(texts()):
        labels = text["input_ids"].clone()
        labels[2 + number % 4 :] = -100
        found.append({**text, "labels": labels})
    return found


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., PrivateTrainer]:
    """A trainer of 4 rounds of 20 of 40 records, each in 5 physical batches of 4."""

    def make(
        *,
        model: Any = None,
        data: Any = None,
        kind: type[PrivateTrainer] = PrivateTrainer,
        privacy: dict[str, Any] | None = None,
        trainers_own: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> PrivateTrainer:
        given = {
            "output_dir": str(tmp_path / "out"),
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 5,
            "save_strategy": "no",
            **arguments,
        }
        target = {"target_epsilon": 8.0, "target_delta": 1e-3, "randomizer": "vector-sum", **(privacy or {})}
        return kind(
            model=classifier() if model is None else model,
            args=transformers.TrainingArguments(**given),
            train_dataset=texts() if data is None else data,
            privacy=PrivacyArguments(**target),
            **(trainers_own or {}),
        )

    return make


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters() if p.requires_grad])


# ---- what a step is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_model", "make_data"), [(classifier, texts), (language_model, sentences)], ids=["classes", "tokens"]
)
def test_a_step_is_the_mean_of_clipped_gradients_of_records_by_themselves(
    make: Any, transparent: type[Transparent], make_model: Any, make_data: Any
) -> None:
    """The other route: plain backward passes of one record each, by the model's own loss."""
    rate, data, alone = 0.5, make_data(), make_model()
    gradients = []
    for record in data:
        alone.zero_grad()
        alone(**{name: value[None] for name, value in record.items()}).loss.backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in alone.parameters()]
        gradients.append(torch.cat([part.flatten() for part in parts]))
    lengths = torch.stack([gradient.norm() for gradient in gradients])
    radius = float(lengths.median())  # half of them are clipped
    weights = (radius / lengths).clamp(max=1.0)
    expected = torch.stack(gradients).mul(weights[:, None]).mean(0)
    model = make_model()
    before = parameters_of(model)
    trainer = make(
        model=model,
        data=data,
        privacy={"randomizer": transparent},
        trainers_own={"optimizers": (torch.optim.SGD(model.parameters(), lr=rate), None)},
        gradient_accumulation_steps=10,  # everybody
        max_steps=1,
        max_grad_norm=radius,
        lr_scheduler_type="constant",
    )
    trainer.train()
    assert transparent.batches == [(4, len(before))] * 10
    assert len(trainer.engine.accountant) == 1
    assert torch.allclose(parameters_of(model) - before, -rate * expected, atol=1e-6)


def test_the_run_costs_its_rounds_and_says_so(make: Any) -> None:
    trainer = make(logging_steps=1)
    metrics = trainer.train().metrics
    (optimizer,) = trainer.engine._optimizers
    sums = VectorSum.with_noise(
        dim=optimizer.num_parameters, cohort=20, noise_multiplier=optimizer.noise_multiplier
    )
    alone = sp.ShuffleAccountant()
    alone.step(sums.round(population=N, cohort=20), num_steps=4)
    assert metrics["epsilon"] == trainer.engine.get_epsilon(1e-3) == alone.epsilon(1e-3).upper
    assert 7.5 < metrics["epsilon"] <= 8.0
    logs = [each for each in trainer.state.log_history if "loss" in each]
    assert [each["epsilon"] for each in logs] == sorted(each["epsilon"] for each in logs)
    assert len(logs) == trainer.state.global_step == trainer.state.max_steps == 4
    assert not any("grad_norm" in each for each in trainer.state.log_history)
    assert 0.5 < logs[0]["loss"] < 1.0  # of two classes before training
    assert trainer.engine.statement().warnings == ()


@pytest.mark.parametrize(
    ("arguments", "privacy", "rounds"),
    [
        ({"max_steps": 3}, {}, 3),
        ({"num_train_epochs": 1.5}, {}, 3),
        ({"num_train_epochs": 2}, {"randomizer": "privunit", "sampling": "epoch"}, 2),
        ({"gradient_accumulation_steps": 1, "max_steps": 2}, {"clipping": "adaptive"}, 2),
        ({"bf16": True, "max_steps": 2}, {}, 2),
        ({"label_smoothing_factor": 0.1, "max_steps": 2}, {}, 2),
        ({"dataloader_num_workers": 1, "max_steps": 2}, {}, 2),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else str(value),
)
def test_arguments_that_work(make: Any, arguments: Any, privacy: Any, rounds: int) -> None:
    trainer = make(privacy=privacy, **arguments)
    before = parameters_of(trainer.model)
    assert trainer.train().metrics["epsilon"] <= 8.0
    assert len(trainer.engine.accountant) == rounds
    assert (parameters_of(trainer.model) != before).any()


@pytest.mark.parametrize(
    ("arguments", "privacy", "says"),
    [
        ({"train_sampling_strategy": "group_by_length"}, {}, "group_by_length"),
        ({"auto_find_batch_size": True}, {}, "second start"),
        ({"activation_checkpointing": True}, {}, "repeated passes"),
        ({"neftune_noise_alpha": 5.0}, {}, "padded"),
        ({"torch_compile": True}, {}, "compiled layers"),
        ({"max_grad_norm": 0.0}, {}, "clipped to it"),
        ({}, {"sampling": "poisson"}, "one size"),
        ({}, {"randomizer": "vector-sum", "sampling": "epoch"}, "without-replacement"),
        ({"per_device_train_batch_size": 41}, {}, "batch of 205 cannot be drawn"),
    ],
)
def test_arguments_that_do_not_are_refused_before_training(
    make: Any, arguments: Any, privacy: Any, says: str
) -> None:
    with pytest.raises(ShufflePrivacyError, match=says):
        make(privacy=privacy, **arguments).train()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(texts())


@pytest.mark.parametrize(
    ("data", "says"), [(Stream(), "map-style"), (Subset(texts(), [0] * N), "repeat a record")]
)
def test_data_that_cannot_be_drawn_from_are_refused(make: Any, data: Any, says: str) -> None:
    with pytest.raises(ShufflePrivacyError, match=says):
        make(data=data, max_steps=2).train()


@pytest.mark.parametrize("name", ["fp16", "world_size", "n_gpu", "deepspeed", "fsdp"])
def test_what_this_machine_cannot_start_is_refused_too(make: Any, name: str) -> None:
    trainer = make()

    class Other:
        def __getattr__(self, asked: str, args: Any = trainer.args) -> Any:
            return 2 if asked == name else getattr(args, asked)

    trainer.args = Other()
    with pytest.raises(ShufflePrivacyError, match="does not train with"):
        trainer.train()


def test_a_run_without_a_target_is_refused() -> None:
    from opacus_shuffle.transformers import PrivateTrainer

    with pytest.raises(ShufflePrivacyError, match=r"privacy=PrivacyArguments\(target_epsilon"):
        PrivateTrainer(model=nn.Linear(1, 1))


def test_a_target_is_checked_when_it_is_given_also_on_a_command_line() -> None:
    with pytest.raises(ValueError, match="target_delta"):
        PrivacyArguments(target_epsilon=1.0, target_delta=2.0)
    parser = transformers.HfArgumentParser((PrivacyArguments,))
    line = ["--target_epsilon", "3", "--target_delta", "1e-5", "--randomizer", "vector-sum"]
    (found,) = parser.parse_args_into_dataclasses(line)
    assert found == PrivacyArguments(target_epsilon=3.0, target_delta=1e-5, randomizer="vector-sum")


# ---- losses -----------------------------------------------------------------------------------------------


class Weighted(transformers.BertForSequenceClassification):  # type: ignore[misc,name-defined]
    """A loss that is no mean: it is over the square of the number of records."""

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        found.loss = nn.functional.cross_entropy(found.logits, labels, reduction="sum") / len(labels) ** 2
        return found


def test_a_loss_that_may_mix_records_is_refused(make: Any) -> None:
    trainer = make(model=Weighted(classifier().config))
    before = parameters_of(trainer.model)
    with pytest.raises(ShufflePrivacyError, match="compute_loss_func"):
        trainer.train()
    assert torch.equal(parameters_of(trainer.model), before)


def test_the_first_batch_shows_the_kind_of_loss(make: Any) -> None:
    """Weights in bf16 give a loss of two digits; and no later batch is refused for what is in it."""
    trainer = make(model=classifier().bfloat16(), max_steps=2)
    rows = []

    def later(module: Any, inputs: Any, found: Any) -> None:
        rows.append(len(found.logits))
        if len(rows) > 1 and found.loss is not None:
            found.loss = found.loss * 2

    trainer.model.register_forward_hook(later)
    trainer.train()
    assert (trainer._kind, rows) == ("labels", [4] * 10)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_loss_in_bf16_shows_its_kind(kind: str) -> None:
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        shape = (32,) if kind == "labels" else (32, 5)
        classes = (3,) if kind in _CLASSES else ()
        logits = torch.randn(*shape, *classes, generator=draw).bfloat16()
        labels = torch.randint(2, shape, generator=draw)
        labels = labels if classes else labels.float()
        losses, counted = _losses_of_items(kind, logits, labels)
        own = (losses.sum() / counted.sum()).bfloat16()
        assert _kind_of(own, logits, labels) == kind
        assert _kind_of(own * 1.2, logits, labels) != kind


@pytest.mark.parametrize("targets", ["numbers", "several labels"])
def test_losses_of_real_numbers(make: Any, targets: str) -> None:
    data = texts()
    if targets == "numbers":
        model = classifier(num_labels=1)
        data = [{**each, "labels": each["labels"].float()} for each in data]
    else:
        model = classifier(problem_type="multi_label_classification")
        data = [{**each, "labels": nn.functional.one_hot(each["labels"], 2).float()} for each in data]
    trainer = make(model=model, data=data, max_steps=1)
    trainer.train()
    assert trainer._kind == targets
    with pytest.raises(ShufflePrivacyError, match="label_smoothing_factor is for labels that are classes"):
        make(model=copy.deepcopy(model), data=data, label_smoothing_factor=0.1).train()


def test_a_loss_function_sees_one_record_at_a_time(make: Any) -> None:
    seen = []

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.append((len(outputs.logits), len(labels), num_items_in_batch))
        return nn.functional.cross_entropy(outputs.logits, labels)

    make(trainers_own={"compute_loss_func": loss}, max_steps=1).train()
    assert seen == [(1, 1, None)] * 20


def test_outputs_are_taken_apart_by_records() -> None:
    tables = {"logits": torch.arange(12.0).view(4, 3), "shared": torch.zeros(2, 4), "loss": torch.tensor(1.0)}
    found, labels = _of_record(tables, torch.arange(4), 2, rows=4)
    assert (found.keys(), found["logits"].tolist(), labels.tolist()) == ({"logits"}, [[6.0, 7.0, 8.0]], [2])
    assert _of_record(tables["logits"], None, 2, rows=4)[0].tolist() == [[6.0, 7.0, 8.0]]
    with pytest.raises(ShufflePrivacyError, match="return_dict=True"):
        _of_record((tables["logits"],), None, 2, rows=4)


def test_a_loss_of_ones_own(make: Any) -> None:
    class Mine(PrivateTrainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.2)
            return (loss, outputs) if return_outputs else loss

    trainer = make(kind=Mine, trainers_own={"eval_dataset": texts(count=8)}, eval_strategy="epoch")
    trainer.train()
    assert len(trainer.engine.accountant) == 4
    assert {"eval_loss"} <= trainer.evaluate().keys()


# ---- ways around ------------------------------------------------------------------------------------------


class StepsTwice(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    def on_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
        optimizer.step()


class OwnLoader(PrivateTrainer):
    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, collate_fn=self.data_collator)


class OwnLoop(OwnLoader):
    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


class OwnOptimizer(PrivateTrainer):
    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


class Sampled(transformers.Trainer):  # type: ignore[misc,name-defined]
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return WeightedRandomSampler([1.0] * N, N)


class PrivateSampled(PrivateTrainer, Sampled):
    pass


def test_a_step_that_no_batch_pays_for_is_refused(make: Any) -> None:
    trainer = make(trainers_own={"callbacks": [StepsTwice()]})
    with pytest.raises(ShufflePrivacyError, match="a step was taken on it already"):
        trainer.train()
    assert len(trainer.engine.accountant) == 1


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (OwnLoader, "not the private one"),
        (OwnLoop, "not the private one"),
        (OwnOptimizer, "not the private one"),
        (PrivateSampled, "WeightedRandomSampler would be replaced"),
    ],
)
def test_a_loader_or_an_optimizer_that_is_not_private_is_refused(make: Any, kind: Any, says: str) -> None:
    trainer = make(kind=kind)
    before = parameters_of(trainer.model)
    with pytest.raises(ShufflePrivacyError, match=says):
        trainer.train()
    assert torch.equal(parameters_of(trainer.model), before)


def test_a_second_run_needs_a_new_trainer(make: Any) -> None:
    trainer = make(max_steps=1)
    assert len(trainer.get_train_dataloader()) == 10  # to look at it costs nothing
    trainer.train()
    with pytest.raises(ShufflePrivacyError, match="make a new trainer"):
        trainer.train()
    with pytest.raises(ShufflePrivacyError, match="another engine's accountant"):
        make(model=trainer.model).train()
    with pytest.raises(ShufflePrivacyError, match="every trial"):
        trainer.hyperparameter_search()


def test_a_run_that_failed_before_its_first_round_needs_a_new_trainer(make: Any) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("once")

    trainer = make(trainers_own={"compute_loss_func": fails})
    with pytest.raises(RuntimeError, match="once"):
        trainer.train()
    assert len(trainer.engine.accountant) == 0
    with pytest.raises(ShufflePrivacyError, match="make a new trainer"):
        trainer.train()
    trainer = make(model=classifier(), max_steps=1)
    trainer.train()
    assert len(trainer.engine.accountant) == 1


def test_a_model_that_is_made_anew(make: Any) -> None:
    kind = lambda model, **own: PrivateTrainer(model_init=model, **own)  # noqa: E731
    trainer = make(model=lambda: classifier(), kind=kind)
    trainer.train()
    assert len(trainer.engine.accountant) == 4


# ---- checkpoints and models -------------------------------------------------------------------------------


class Stops(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """A run that ends after three rounds, in the middle of an epoch."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 3


def test_a_run_that_was_cut_off_goes_on_with_what_it_spent(make: Any) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole = make(max_steps=5)
    whole.train()
    first = make(max_steps=5, trainers_own={"callbacks": [Stops()]}, **saving)
    first.train()
    assert len(first.engine.accountant) == 3
    second = make(max_steps=5, **saving)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == len(second.engine.accountant) == 5
    assert second.engine.accountant.history == whole.engine.accountant.history
    assert any("taken over from a checkpoint" in each for each in second.engine.statement().warnings)


def test_a_checkpoint_without_its_costs_is_refused(make: Any, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "trainers_own": {"callbacks": [Stops()]}}
    make(save_only_model=True, **saving).train()
    with pytest.raises(ShufflePrivacyError, match=r"3 rounds, and it holds the costs of 0.*save_only_model"):
        make().train(resume_from_checkpoint=True)


def test_what_comes_out_is_a_plain_model(make: Any, tmp_path: Path) -> None:
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    trainer = make(trainers_own={"eval_dataset": texts(count=8)}, **evaluation)
    trainer.train()
    assert sum("eval_loss" in each for each in trainer.state.log_history) == 5
    predicted = trainer.predict(texts(count=8)).predictions
    assert predicted.shape == (8, 2)
    trainer.save_model(str(tmp_path / "saved"))
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(parameters_of(loaded), parameters_of(trainer.model))
    again = copy.deepcopy(trainer.model).eval()
    batch = transformers.default_data_collator(texts(count=8))
    assert torch.allclose(again(**batch).logits, torch.as_tensor(predicted), atol=1e-6)


def test_lora_trains_and_saves_the_adapters_alone(make: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.0)
    model = peft.get_peft_model(classifier(), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = make(model=model, learning_rate=0.1)
    trainer.train()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) is not p.requires_grad, name
    trainer.save_model(str(tmp_path))
    assert not (tmp_path / "model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(classifier(), tmp_path)
    batch = transformers.default_data_collator(texts(count=8))
    assert torch.allclose(loaded.eval()(**batch).logits, model.eval()(**batch).logits, atol=1e-6)


def test_the_package_loads_without_transformers() -> None:
    code = "import sys, opacus_shuffle; opacus_shuffle.PrivacyEngine; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# ---- Accelerate -------------------------------------------------------------------------------------------


def prepared(**options: Any) -> tuple[Any, PrivacyEngine, Any, Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    engine = PrivacyEngine()
    objects = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(3, (40,))), batch_size=10),
        randomizer="vector-sum",
        target_epsilon=8.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
    )
    accelerator = accelerate.Accelerator(cpu=True, **options)
    return accelerator, engine, *accelerator.prepare(*objects)


def an_epoch(accelerator: Any, model: Any, optimizer: Any, loader: Any, *, clears_first: bool = True) -> None:
    for x, y in loader:
        with accelerator.accumulate(model):
            if clears_first:
                optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if not clears_first:
                optimizer.zero_grad()


def test_accelerate_trains_saves_and_resumes(tmp_path: Path) -> None:
    accelerator, engine, *objects = prepared()
    an_epoch(accelerator, *objects)
    assert len(engine.accountant) == 4
    accelerator.save_state(str(tmp_path))
    accelerator, second, *objects = prepared()
    accelerator.load_state(str(tmp_path))
    an_epoch(accelerator, *objects)
    assert len(second.accountant) == 8
    assert 7.5 < second.get_epsilon(1e-3) <= 8.0
    with pytest.raises(PrivacyBudgetExceeded):
        an_epoch(accelerator, *objects)


def test_accelerate_does_not_accumulate_nor_run_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator, engine, *objects = prepared(gradient_accumulation_steps=2)
    with pytest.raises(ShufflePrivacyError, match="after every batch"):
        an_epoch(accelerator, *objects, clears_first=False)
    accelerator, engine, *objects = prepared(gradient_accumulation_steps=2)
    an_epoch(accelerator, *objects)  # throws every other batch away, and pays for it
    assert len(engine.accountant) == 4
    assert "no step taken on them: 2" in engine.statement().warnings[-1]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ShufflePrivacyError, match="several processes"):
        accelerator.prepare(objects[2])


def test_a_loader_of_accelerate_is_refused() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(6, 3)
    data = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=10))
    with pytest.raises(ShufflePrivacyError, match="no batch_size"):
        PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, local_epsilon=4.0, max_grad_norm=1.0
        )
