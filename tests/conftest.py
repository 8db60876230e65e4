"""Property tests search anew on a developer's machine and repeat themselves in continuous integration.

No test may fail because the machine is busy, so none of them has a deadline. Under ``-n`` the tests of a file
stay together, and files that take long come first, lest one worker be busy with one of them at the end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores already; before NumPy and torch are loaded
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# A ledger waits until the disk has what it wrote. Tests need not: their files are in memory if it is ample.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

import pytest
from hypothesis import HealthCheck, settings

patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("developer", **patient)
settings.register_profile("ci", derandomize=True, **patient)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


LONGEST = (
    "test_deployment.py",
    "test_kill9.py",
    "test_code_blocks.py",
    "test_shared_deployment.py",
    "test_conformance_builtin.py",
    "test_opacus_distributed.py",
    "test_cli.py",
    "test_audit_mechanisms.py",
    "test_planning.py",
    "test_simulation.py",
    "test_counted_rounds.py",
    "test_accountant.py",
    "test_training_recipes.py",
    "test_conformance_extending.py",
    "test_federated.py",
    "test_sampled_records.py",
    "test_opacus_scripts.py",
    "test_frontier_example.py",
)
"""The files that take longest, longest first; those that start processes, and wait for them, in between."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then tests that start processes: others can run while those wait."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        rank = LONGEST.index(name) if name in LONGEST else len(LONGEST)
        return rank, item.get_closest_marker("process") is None

    items.sort(key=place)


def import_from_the_end(arguments: list[str]) -> None:
    """Import test modules, the last one first: two workers then compile two halves, not each of them all.

    Python keeps what one process has compiled, and the other finds it there. After a new installation that
    is half a minute's work. What cannot be imported is reported where it is collected.
    """
    places = [Path(argument.partition("::")[0]) for argument in arguments]
    files = [
        file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])
    ]
    for file in reversed(files):
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.stem)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Modules and tests stay until the end: to look among them for garbage takes seconds and finds none."""
    gc.disable()
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        import_from_the_end(session.config.args)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """PyTorch's loggers propagate: pytest adds its handlers to each that does not, anew for every test."""
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a file go to one worker: what they share, processes and computed laws, is made once.

    Whatever ``--dist`` says. Marks of xdist would not do: with pytest 9.2 xdist 3.8 does not see its groups.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order of collection, not the files with most tests first
    return LoadFileScheduling(config, log)
