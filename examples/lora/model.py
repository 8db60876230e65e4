"""A classifier of short texts on a pretrained encoder, its adapters, and what the frozen layers see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder


class SentenceClassifier(nn.Module):
    """A linear head on the means of the upper layers' hidden states. One output: the logit of label 1.

    PEFT wraps it like any other module.
    """

    def __init__(self, encoder: PreTrainedModel, *, layers: int) -> None:
        """``encoder``: BERT or MPNet; ``layers``: how many upper ones the head reads and adapters are in."""
        super().__init__()
        self.encoder = encoder
        self.layers = layers
        self.head = nn.Linear(layers * encoder.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits, (batch,), of texts as token numbers, (batch, tokens), and which of these are no padding."""
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        return self.score(self.embed(found.hidden_states[-self.layers :], attention_mask))

    def embed(self, hidden: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
        """What the head reads, rows of length one: each layer's mean over a text, divided by its norm."""
        weights = attention_mask[:, :, None].float()
        means = [functional.normalize((each.float() * weights).sum(dim=1), dim=1) for each in hidden]
        return torch.cat(means, dim=1) / len(means) ** 0.5

    def score(self, embeddings: Tensor) -> Tensor:
        """Logits, (batch,), of what :meth:`embed` returned."""
        logits: Tensor = self.head(embeddings)
        return logits.float().squeeze(1)


def with_adapters(classifier: SentenceClassifier, *, rank: int, alpha: float) -> PeftModel:
    """The classifier with LoRA on queries and values of its upper layers; the head is trained whole."""
    count = classifier.encoder.config.num_hidden_layers
    numbers = "|".join(map(str, range(count - classifier.layers, count)))
    return get_peft_model(
        classifier,
        LoraConfig(
            r=rank,
            lora_alpha=alpha,
            target_modules=rf".*layer\.({numbers})\..*\.(query|value|q|v)",  # BERT's names and MPNet's
            modules_to_save=["head"],
        ),
    )


class UpperLayers(nn.Module):
    """What is trained: the upper layers and the head, on hidden states of the frozen layers below."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self.classifier: SentenceClassifier = model.base_model.model

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits, (batch,), of hidden states (batch, tokens, width), and which tokens are no padding."""
        ignored = torch.where(attention_mask, 0.0, -1e4)[:, None, None, :]
        stack, states = self.classifier.encoder.encoder, []
        places = (stack.compute_position_bias(hidden),) if isinstance(stack, MPNetEncoder) else ()
        for layer in stack.layer[-self.classifier.layers :]:
            found = layer(hidden, ignored, *places)
            hidden = found[0] if isinstance(found, tuple) else found
            states.append(hidden)
        return self.classifier.score(self.classifier.embed(states, attention_mask))


class FrozenStates(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Texts as the frozen encoder sees them: hidden states below the lowest trained layer, and embeddings.

    The shortest texts come first: physical batches are cut from a batch in the data set's order, so each
    holds texts of about one length, and little is spent on padding. Memory: two bytes for each of the
    ``hidden_size`` numbers of a token.
    """

    @torch.no_grad()
    def __init__(
        self, classifier: SentenceClassifier, texts: Sequence[list[int]], labels: Sequence[int]
    ) -> None:
        """Run the encoder on texts, given as token numbers."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        self.labels = torch.tensor([labels[number] for number in order], dtype=torch.float32)
        self._states: list[Tensor] = []
        embeddings = []
        encoder, layers = classifier.encoder.eval(), classifier.layers
        for _, same in groupby(order, key=lambda number: len(texts[number])):  # so none is padded
            for part in torch.tensor([texts[number] for number in same]).split(128):
                with torch.autocast("cpu", torch.bfloat16):
                    found = encoder(part, output_hidden_states=True)
                self._states += found.hidden_states[-1 - layers].to(torch.bfloat16)
                embeddings.append(classifier.embed(found.hidden_states[-layers:], torch.ones_like(part)))
        self.embeddings = torch.cat(embeddings)

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states, (tokens, width), the embedding, (width,), and the label."""
        return self._states[number], self.embeddings[number], self.labels[number]


def embedded(rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch for the head alone: embeddings, (batch, width), and labels."""
    return torch.stack([row[1] for row in rows]), torch.stack([row[2] for row in rows])


def padded(rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """A batch for the layers: hidden states (batch, tokens, width), which are no padding, and labels."""
    lengths = torch.tensor([len(row[0]) for row in rows])
    hidden = pad_sequence([row[0] for row in rows], batch_first=True).float()
    labels = torch.stack([row[2] for row in rows])
    return hidden, torch.arange(hidden.shape[1]) < lengths[:, None], labels


@torch.no_grad()
def accuracy(upper: UpperLayers, texts: FrozenStates) -> float:
    """Share of texts whose label the model finds."""
    upper.eval()
    right = 0
    for hidden, attention_mask, labels in DataLoader(texts, batch_size=128, collate_fn=padded):
        with torch.autocast("cpu", torch.bfloat16):
            right += int(((upper(hidden, attention_mask) > 0) == (labels > 0.5)).sum())
    return right / len(texts)
