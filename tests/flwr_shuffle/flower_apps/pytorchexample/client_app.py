"""A Flower client that trains with PyTorch, after Flower's ``examples/quickstart-pytorch`` (Apache-2.0)."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

# Flower ClientApp
app = ClientApp()


def received(msg: Message) -> Net:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model.to(torch.device("cpu"))


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = received(msg)
    node, config = context.node_config, context.run_config
    trainloader, _ = load_data(node["partition-id"], node["num-partitions"], config["batch-size"])
    train_loss = train_fn(model, trainloader, config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    model = received(msg)
    node, config = context.node_config, context.run_config
    _, valloader = load_data(node["partition-id"], node["num-partitions"], config["batch-size"])
    eval_loss, eval_acc = test_fn(model, valloader)
    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "num-examples": len(valloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
