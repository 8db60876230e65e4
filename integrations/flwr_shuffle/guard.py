"""Flower's ``flwr-clientapp`` for a SuperNode that refuses apps without :class:`ShuffleMod`.

A SuperNode runs every app's messages by the program ``flwr-clientapp`` that it finds on its ``PATH``. An
operator puts this one before Flower's:

.. code-block:: sh

    mkdir guard
    printf '#!/bin/sh\\nexec python -m flwr_shuffle.guard "$@"\\n' > guard/flwr-clientapp
    chmod +x guard/flwr-clientapp
    PATH="$PWD/guard:$PATH" flower-supernode …

An app whose first mod is not a ``ShuffleMod`` is answered by Flower's own error that it cannot be loaded, and
the node's log says why. That keeps out apps that forgot the mod. It keeps out no hostile one, whose code runs
as it is loaded: ``SHUFFLE_REVIEWED_APPS`` in the environment names a file that lists the FABs that the
operator has reviewed, as ``sha256sum`` does, and then no code of another is run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.clientapp import ClientApp

# Flower has no public address for these.
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

REVIEWED_APPS = "SHUFFLE_REVIEWED_APPS"


def guarded(app: ClientApp) -> ClientApp:
    """The app itself, if a :class:`ShuffleMod` is the first of its mods."""
    from flwr_shuffle.client import ShuffleMod

    mods = getattr(app, "_mods", ())
    if not mods or type(mods[0]) is not ShuffleMod:
        raise LoadClientAppError(
            "shuffle: this node runs no app whose first mod is not ShuffleMod, as in "
            "ClientApp(mods=[ShuffleMod(), …])"
        )
    return app


def check_reviewed(fab: bytes) -> None:
    """Refuse an app that the operator has not reviewed, if there is a list."""
    if (listed := os.environ.get(REVIEWED_APPS)) is None:
        return
    found = hashlib.sha256(fab).hexdigest()
    try:
        reviewed = {line.split()[0].lower() for line in Path(listed).read_text().splitlines() if line.strip()}
    except OSError as error:
        raise LoadClientAppError(f"shuffle: the list of reviewed apps cannot be read: {error}") from error
    if found not in reviewed:
        raise LoadClientAppError(f"shuffle: the app with SHA-256 {found} is not in {listed}; it was not run")


def guarded_program() -> None:
    """Run ``flwr-clientapp`` with both checks."""
    program = import_module("flwr.supernode.runtime.run_clientapp")
    install, loader = program.install_from_fab, program.get_load_client_app_fn
    find, unpacked = program.get_project_dir, set[Path]()

    def checked_install(fab: bytes, *args: Any, **options: Any) -> Path:
        check_reviewed(fab)
        installed: Path = install(fab, *args, **options)
        unpacked.add(installed)
        return installed

    def checked_folder(*of: str) -> Path:  # asked for before dependencies are installed and the app is loaded
        folder: Path = find(*of)
        if folder not in unpacked:  # a server chooses the names that make up the path, ".." among them
            raise LoadClientAppError(f"shuffle: the app in {folder} is not the one unpacked; it was not run")
        return folder

    def guarded_loader(**options: Any) -> Callable[..., ClientApp]:
        load = loader(**options)
        return lambda *of: guarded(load(*of))

    vars(program).update(
        install_from_fab=checked_install,
        get_project_dir=checked_folder,
        get_load_client_app_fn=guarded_loader,
    )
    sys.argv[0] = "flwr-clientapp"  # Flower looks up by that name what a program may do
    with TemporaryDirectory() as home:
        if REVIEWED_APPS in os.environ:
            os.environ["FLWR_HOME"] = home  # where no other app lies: what is run is what was reviewed
        flwr_clientapp()


if __name__ == "__main__":
    guarded_program()
