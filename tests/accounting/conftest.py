"""A test that plants faults neither reads answers of other tests nor leaves its own to them."""

import functools
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """pytest's own, on empty caches: which test runs before in a process is chance."""
    _forget()
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("shuffle_plugins."):
            for kept in list(vars(module).values()):
                if isinstance(kept, functools._lru_cache_wrapper):
                    kept.cache_clear()
