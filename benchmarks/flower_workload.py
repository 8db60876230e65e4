"""The clients of ``flower_overhead.py``: a module of its own, so that the engine's workers import it once."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr_shuffle import ClientLimits, ShuffleMod
from torch import Tensor, nn

BATCH, LEARNING_RATE = 10, 0.05
_randomised = ShuffleMod(limits=ClientLimits(max_local_epsilon=4.0, max_rounds=1000))


def network() -> nn.Sequential:
    """784-128-10, 101,770 parameters."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@cache
def examples(number: int) -> tuple[Tensor, Tensor]:
    """A client's examples, of the size of MNIST's; everybody has the same ones."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(number, 784, generator=generator), torch.randint(10, (number,), generator=generator)


def shuffled_when_asked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod for rounds of ``ShuffleStrategy``; rounds of plain FedAvg go past it."""
    if "shuffle" in message.content:
        return _randomised(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[shuffled_when_asked])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD."""
    torch.set_num_threads(1)
    arrays = message.content["arrays"]
    number = message.content["config"]["examples"]
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    x, y = examples(number)
    for part in torch.randperm(number).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": type(arrays)(model.state_dict()),
            "metrics": MetricRecord({"num-examples": number}),
        }
    )
    return Message(content, reply_to=message)
