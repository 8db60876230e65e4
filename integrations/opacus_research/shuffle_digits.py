#!/usr/bin/env python3
# Copyright (c) The shuffle-plugins authors

"""Train a classifier of digits in the shuffle model of differential privacy."""

import argparse

import torch
from opacus_shuffle import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINING = 1_500
LEARNING_RATES = {"none": 1.0, "vector-sum": 4.0, "privunit": 1.0}


def digits():
    """Training and test data: 1,797 images of 8 x 8, in a fixed order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    data = TensorDataset(x, y)
    split = (range(TRAINING), range(TRAINING, len(y)))
    return tuple(torch.utils.data.Subset(data, part) for part in split)


def train(model, loader, optimizer):
    """One pass over the loader; the mean loss."""
    model.train()
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def test(model, data):
    """Share of the data that the model gets right."""
    model.eval()
    images, labels = next(iter(DataLoader(data, batch_size=len(data))))
    with torch.no_grad():
        right = model(images).argmax(dim=1) == labels
    return right.float().mean().item()


def main(arguments=None):
    """Train as the command line says, and return the accuracy and both ends of epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--randomizer",
        choices=sorted(LEARNING_RATES),
        default="vector-sum",
        help="how a record hides its gradient; none trains without privacy",
    )
    parser.add_argument("--epsilon", type=float, default=3.0, help="of the whole run")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("-b", "--batch-size", type=int, default=300)
    parser.add_argument("-c", "--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--lr", type=float, help="default: fits the randomizer")
    args = parser.parse_args(arguments)

    training, testing = digits()
    model = nn.Linear(64, 10)
    rate = LEARNING_RATES[args.randomizer] if args.lr is None else args.lr
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = DataLoader(training, batch_size=args.batch_size, shuffle=True)
    private = args.randomizer != "none"
    if private:
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=args.epsilon,
            target_delta=args.delta,
            epochs=args.epochs,
            max_grad_norm=args.max_grad_norm,
            randomizer=args.randomizer,
        )
        print(engine.training_plan)
    for epoch in range(1, args.epochs + 1):
        loss = train(model, loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {test(model, testing):.1%}")
    accuracy = test(model, testing)
    if not private:
        return accuracy, None
    found = engine.get_epsilon_interval(args.delta)
    print(found)
    return accuracy, (found.lower, found.upper)


if __name__ == "__main__":
    main()
