"""The example app in Flower's simulation engine, with aggregators or mix nodes among the simulated nodes.

Used by ``simulated_app.py``, in the same simulation as its own app: Ray takes twelve seconds of processor
time to start, and to import PyTorch in its actor.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flower_mnist import client_app, server_app
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir
from flwr.serverapp import Grid
from flwr_shuffle.service_nodes import _folder_of

EXAMPLE = Path(server_app.__file__).parent.parent
RUN_CONFIG: dict[str, Any] = {
    "population": 8,
    "cohort": 4,
    "num-server-rounds": 1,
    "minimum-reports": 2,
    "local-steps": 1,
}
TRIED: dict[str, dict[str, Any]] = {
    "sum": {"simulated-aggregators": 2},
    "verified sum": {"simulated-aggregators": 2, "verified": True},
    "window": {"simulated-aggregators": 2, "band": 2, "sampling": "cyclic"},
    "two mix nodes": {"simulated-mixers": 2},
}
"""By what is tried, what the run-config says beside."""


class EitherApp(ClientApp):
    """The example's app while a file has its run-config, and another one otherwise."""

    def __init__(self, other: ClientApp, *, file: Path) -> None:
        super().__init__()
        self._other, self._file = other, file

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message of the server's by the example's app or the other one."""
        if not self._file.exists():
            return self._other(message, context)
        config = json.loads(self._file.read_text())
        return client_app.app(message, dataclasses.replace(context, state=RecordDict(), run_config=config))


def simulate(grid: Grid, context: Context, *, file: Path) -> None:
    """All that is tried, one after another."""
    for name, more in TRIED.items():
        config = get_fused_config_from_dir(EXAMPLE, RUN_CONFIG | more)
        file.write_text(json.dumps(config))
        with redirect_stdout(io.StringIO()) as printed:
            server_app.main(grid, dataclasses.replace(context, run_config=config))
        print(f"example with {name}: {printed.getvalue().splitlines()[-1]}", flush=True)
    file.unlink()
    shutil.rmtree(_folder_of(context.run_id))  # the keys, which somebody has made
