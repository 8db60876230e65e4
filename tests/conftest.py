"""Property tests search anew on a developer's machine and repeat themselves in continuous integration.

No test may fail because the machine is busy, so none of them has a deadline. Under ``-n`` the tests of a file
stay together.
"""

from __future__ import annotations

import os
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores already; before NumPy and torch are loaded
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("developer", **patient)
settings.register_profile("ci", derandomize=True, **patient)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes come first: they wait for long, and others can run meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("process") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a file go to one worker: what they share, processes and computed laws, is made once.

    Whatever ``--dist`` says. Marks of xdist would not do: with pytest 9.2 xdist 3.8 does not see its groups.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order of collection, not the files with most tests first
    return LoadFileScheduling(config, log)
