"""Plain Opacus on texts, rebuilt after Opacus's ``examples/imdb.py`` (Apache-2.0), on made-up reviews."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import optim
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCABULARY = 1000


class SampleNet(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, 16)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc1 = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x):
        x = self.emb(x).transpose(1, 2)
        return self.fc2(F.relu(self.fc1(self.pool(x).squeeze())))


def reviews(count):
    """Reviews of 5 to 40 words; good ones draw half of their words from the upper half of the vocabulary."""
    draw = torch.Generator().manual_seed(count)
    found = []
    for _ in range(count):
        label = int(torch.randint(2, (), generator=draw))
        length = int(torch.randint(5, 41, (), generator=draw))
        words = torch.randint(VOCABULARY // 2, (length,), generator=draw)
        mood = torch.rand(len(words), generator=draw) < 0.5
        words = words + label * (VOCABULARY // 2) * mood
        found.append({"input_ids": words, "label": torch.tensor(label)})
    return found


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([e["input_ids"] for e in batch], batch_first=True, padding_value=padding_idx)
    return x, torch.stack([e["label"] for e in batch]).long()


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    criterion = nn.CrossEntropyLoss()
    losses = []
    model = model.train()
    for data, label in train_loader:
        optimizer.zero_grad()
        predictions = model(data).squeeze(1)
        loss = criterion(predictions, label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    epsilon = privacy_engine.accountant.get_epsilon(delta=args.delta)
    print(f"Train Epoch: {epoch} Train Loss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")
    return epsilon


def evaluate(model, test_loader):
    model = model.eval()
    with torch.no_grad():
        right = [(model(x).squeeze(1).argmax(dim=1) == y).float().mean().item() for x, y in test_loader]
    return float(np.mean(right))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--sigma", type=float, default=0.56)
    parser.add_argument("--max-per-sample-grad_norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)

    train_loader = DataLoader(
        reviews(1000),
        num_workers=args.workers,
        batch_size=args.batch_size,
        collate_fn=padded_collate,
        shuffle=True,
    )
    test_loader = DataLoader(reviews(200), batch_size=64, shuffle=False, collate_fn=padded_collate)
    model = SampleNet(vocab_size=VOCABULARY)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    privacy_engine = PrivacyEngine(secure_mode=False)
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
        poisson_sampling=False,
    )
    epsilon = 0.0
    for epoch in range(1, args.epochs + 1):
        epsilon = train(args, model, train_loader, optimizer, privacy_engine, epoch)
    return {"epsilon": epsilon, "accuracy": evaluate(model, test_loader), "engine": privacy_engine}
