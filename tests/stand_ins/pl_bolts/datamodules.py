"""The data module that Opacus's Lightning example trains on; like the real one it builds loaders anew."""

from __future__ import annotations

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import digits


class MNISTDataModule(LightningDataModule):
    """1,500 pictures to train on, the rest to test on."""

    def __init__(self, *, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        images, labels = (torch.from_numpy(each) for each in digits())
        self.data = TensorDataset(images[:, None] / 255, labels)

    def loader(self, part: slice, *, shuffle: bool) -> DataLoader:
        return DataLoader(TensorDataset(*self.data[part]), batch_size=self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader:
        return self.loader(slice(None, 1500), shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self.loader(slice(1500, None), shuffle=False)

    test_dataloader = val_dataloader
