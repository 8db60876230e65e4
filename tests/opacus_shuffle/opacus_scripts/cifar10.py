"""Plain Opacus on drawn colour images, rebuilt after Opacus's ``examples/cifar10.py`` (Apache-2.0)."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from opacus import PrivacyEngine
from torch import optim
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import DataLoader, TensorDataset


def convnet(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.Conv2d(32, 64, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(start_dim=1, end_dim=-1),
        nn.Linear(64, num_classes, bias=True),
    )


def colours(count):
    """Noisy images of ten colours, the colour being the class."""
    draw = torch.Generator().manual_seed(count)
    labels = torch.randint(10, (count,), generator=draw)
    centre = torch.rand(10, 3, 1, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return TensorDataset(centre[labels] + 0.3 * torch.randn(count, 3, 32, 32, generator=draw), labels)


def train(args, model, train_loader, optimizer, privacy_engine):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    if args.grad_sample_mode == "no_op":
        names = [name for name, _ in model.named_parameters()]
        params = list(model.parameters())

        def compute_loss(values, sample, target):
            batch = functional_call(model, dict(zip(names, values, strict=True)), (sample.unsqueeze(0),))
            return criterion(batch, target.unsqueeze(0))

        compute_sample_grad = vmap(grad_and_value(compute_loss), in_dims=(None, 0, 0))
    for images, target in train_loader:
        output = model(images)
        if args.grad_sample_mode == "no_op":
            per_sample_grads, per_sample_losses = compute_sample_grad(params, images, target)
            loss = torch.mean(per_sample_losses)
            for p, g in zip(params, per_sample_grads, strict=True):
                p.grad_sample = g.detach()
        else:
            loss = criterion(output, target)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    epsilon = privacy_engine.accountant.get_epsilon(delta=args.delta)
    print(f"Loss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")
    return epsilon


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(dim=1) == y).float().mean().item() for x, y in test_loader]
    return float(np.mean(right))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--grad_sample_mode", default="hooks")
    parser.add_argument("--clip_per_layer", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--sigma", type=float, default=1.5)
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    args = parser.parse_args(argv)

    train_loader = DataLoader(colours(800), batch_size=args.batch_size, num_workers=args.workers)
    test_loader = DataLoader(colours(200), batch_size=256, shuffle=False, num_workers=0)
    model = convnet(num_classes=10)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=0)
    if args.clip_per_layer:
        # All layers have the same threshold; the whole gradient's norm stays within the total.
        n_layers = len([(n, p) for n, p in model.named_parameters() if p.requires_grad])
        max_grad_norm = [args.max_per_sample_grad_norm / np.sqrt(n_layers)] * n_layers
    else:
        max_grad_norm = args.max_per_sample_grad_norm
    privacy_engine = PrivacyEngine(secure_mode=False)
    clipping = "per_layer" if args.clip_per_layer else "flat"
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=max_grad_norm,
        clipping=clipping,
        grad_sample_mode=args.grad_sample_mode,
    )
    epsilon = 0.0
    for _epoch in range(args.epochs):
        epsilon = train(args, model, train_loader, optimizer, privacy_engine)
    return {"epsilon": epsilon, "accuracy": test(model, test_loader), "engine": privacy_engine}
