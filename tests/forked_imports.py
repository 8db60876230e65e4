"""Processes that fork from one that has imported a module, once for all of them."""

import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest


def import_before_forks(module: str) -> None:
    """Let what ``multiprocessing`` starts by its method "forkserver" find a module imported.

    That server has not this process's ``sys.path`` while it imports, so it is told in the environment.
    """
    multiprocessing.set_forkserver_preload([module])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
