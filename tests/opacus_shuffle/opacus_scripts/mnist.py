"""Plain Opacus on scikit-learn's digits, rebuilt after Opacus's ``examples/mnist.py`` (Apache-2.0)."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import optim
from torch.utils.data import DataLoader, TensorDataset


class SampleConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        x = x.view(-1, 32 * 4 * 4)
        return self.fc2(F.relu(self.fc1(x)))


def digits():
    """1,500 digits to train on and 297 to test on, enlarged to 28 by 28 pixels."""
    found = load_digits()
    images = torch.tensor(found.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    images = (F.interpolate(images, size=(28, 28), mode="bilinear") - 0.1307) / 0.3081
    data = TensorDataset(images, torch.tensor(found.target))
    return torch.utils.data.random_split(data, [1500, len(data) - 1500])


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    epsilon = privacy_engine.accountant.get_epsilon(delta=args.delta)
    print(f"Train Epoch: {epoch} Loss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")
    return epsilon


def test(model, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return correct / len(test_loader.dataset)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--max-per-sample-grad_norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    args = parser.parse_args(argv)

    train_data, test_data = digits()
    train_loader = DataLoader(train_data, batch_size=args.batch_size, num_workers=0)
    test_loader = DataLoader(test_data, batch_size=1024, shuffle=True, num_workers=0)
    model = SampleConvNet()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    privacy_engine = PrivacyEngine(secure_mode=False)
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    epsilon = 0.0
    for epoch in range(1, args.epochs + 1):
        epsilon = train(args, model, train_loader, optimizer, privacy_engine, epoch)
    return {"epsilon": epsilon, "accuracy": test(model, test_loader), "engine": privacy_engine}
