"""Torch, imported when it is first used: what a mechanism's reports tell is computed without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shuffle_plugins.core.extras import advised

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # somebody inspects the module that holds this
                raise AttributeError(name)
            with advised():
                found = getattr(import_module("torch"), name)
            setattr(self, name, found)
            return found

    torch = _Torch()

    class _Instances(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor)

    class Tensor(metaclass=_Instances):
        """Stands for torch's in annotations and ``isinstance``."""

        __module__ = "torch"
