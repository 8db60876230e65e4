"""Model, data and training of the app: 62,006 parameters, on drawn colour images in place of CIFAR-10."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Net(nn.Module):
    """Small network of PyTorch's tutorial "A 60 Minute Blitz"."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x))).view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def colours(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Noisy images of ten colours, the colour being the class, as rows of a data set."""
    draw = torch.Generator().manual_seed(seed)
    centre = torch.rand(10, 3, 1, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    labels = torch.randint(10, (count,), generator=draw)
    images = centre[labels] + 0.3 * torch.randn(count, 3, 32, 32, generator=draw)
    return [{"img": image, "label": label} for image, label in zip(images, labels, strict=True)]


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Load a partition: 80 % to train, 20 % to test."""
    rows = colours(20, seed=1 + partition_id % num_partitions)
    return DataLoader(rows[:16], batch_size=batch_size, shuffle=True), DataLoader(
        rows[16:], batch_size=batch_size
    )


def load_centralized_dataset():
    """Load the test set."""
    return DataLoader(colours(100, seed=0), batch_size=128)


def train(net, trainloader, epochs, lr):
    """Train the model on the training set."""
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(batch["img"]), batch["label"])
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader):
    """Validate the model on the test set."""
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            outputs = net(batch["img"])
            loss += criterion(outputs, batch["label"]).item()
            correct += (torch.max(outputs, 1)[1] == batch["label"]).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
