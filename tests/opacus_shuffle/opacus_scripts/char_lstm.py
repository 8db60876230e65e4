"""Plain Opacus on names, rebuilt after Opacus's ``examples/char-lstm-classification.py`` (Apache-2.0)."""

import argparse
from statistics import mean

import torch
import torch.nn as nn
from opacus import PrivacyEngine
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

SYLLABLES = (
    ("ka", "mi", "to", "shi", "no"),
    ("ov", "sky", "iev", "dim", "gri"),
    ("ez", "al", "ro", "gar", "cia"),
)


class CharNNClassifier(nn.Module):
    def __init__(self, rnn_type, embedding_size, hidden_size, output_size, vocab_size=256 + 3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.rnn = rnn_type(embedding_size, hidden_size, num_layers=1, bidirectional=False, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden=None):
        x, _ = self.rnn(self.embedding(x), hidden)
        return self.out_layer(x[:, -1, :])


def names(count):
    """Made-up names of three languages, as bytes between a start and an end token."""
    draw = torch.Generator().manual_seed(count)
    found = []
    for _ in range(count):
        language = int(torch.randint(3, (), generator=draw))
        parts = torch.randint(5, (3,), generator=draw).tolist()
        name = "".join(SYLLABLES[language][i] for i in parts)
        found.append((torch.tensor([256, *name.encode(), 257]), torch.tensor(language)))
    return found


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([elem[0] for elem in batch], batch_first=True, padding_value=padding_idx)
    return x, torch.stack([elem[1] for elem in batch]).long()


def train(model, criterion, optimizer, train_loader, epoch, privacy_engine, target_delta):
    model.train()
    losses = []
    for x, y in train_loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    epsilon = privacy_engine.accountant.get_epsilon(delta=target_delta)
    print(f"Epoch {epoch}. Loss: {mean(losses):.6f} | (ε = {epsilon:.2f}, δ = {target_delta})")
    return epsilon


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        return mean(float(model(x).argmax(-1).eq(y).sum()) / len(y) for x, y in test_loader)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="lstm", choices=["lstm", "gru", "rnn"])
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.5)
    parser.add_argument("--delta", type=float, default=8e-5)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args(argv)

    rnn_type = {"rnn": DPRNN, "gru": DPGRU, "lstm": DPLSTM}[args.mode]
    model = CharNNClassifier(rnn_type, 16, 32, 3)
    train_loader = DataLoader(
        names(800), batch_size=args.batch_size, num_workers=args.workers, collate_fn=padded_collate
    )
    test_loader = DataLoader(names(200), batch_size=200, shuffle=False, collate_fn=padded_collate)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    privacy_engine = PrivacyEngine(secure_mode=False)
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    epsilon = 0.0
    for epoch in range(args.epochs):
        epsilon = train(model, criterion, optimizer, train_loader, epoch, privacy_engine, args.delta)
    return {"epsilon": epsilon, "accuracy": test(model, test_loader), "engine": privacy_engine}
