"""Scripts as modules, and records that examples can be run on."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def script(path: str) -> ModuleType:
    """A script of this project, by its path, as a module."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Inside, modules of a folder can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def example_script(name: str) -> Iterator[ModuleType]:
    """``examples/NAME.py``, imported; inside, it can import the modules beside it."""
    with importable(EXAMPLES):
        module = sys.modules[name] = script(f"examples/{name}.py")
        yield module


@contextmanager
def example_folder(folder: str, *names: str) -> Iterator[SimpleNamespace]:
    """The scripts of a folder of ``examples``, which import each other by bare names."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(EXAMPLES)
        patch.syspath_prepend(EXAMPLES / folder)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            del sys.modules[name]


def blobs(clients: int, each: int) -> tuple[Tensor, Tensor]:
    """Records of ten classes around the corners of a simplex, (clients, each, 10), and their classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (clients, each), generator=generator)
    noise = torch.randn(clients, each, 10, generator=generator) * 0.1
    return torch.nn.functional.normalize(torch.eye(10)[labels] + noise, dim=-1), labels
