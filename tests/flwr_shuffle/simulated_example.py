"""The example app in Flower's simulation engine, with aggregators or a mix node among the simulated nodes.

Run by ``simulated_app.py``, in the same process. A simulation may train twice, so that Ray starts seldom.
"""

from __future__ import annotations

import dataclasses
import io
import secrets
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flower_mnist import client_app, server_app
from flwr.app import Context
from flwr.common import EventType
from flwr.common.config import get_fused_config_from_dir
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid, ServerApp
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr_shuffle.simulated_nodes import _folder_of

EXAMPLE = Path(server_app.__file__).parent.parent
NODES, ROUNDS = 6, 1
RUN_CONFIG: dict[str, Any] = {
    "population": 4,
    "cohort": 4,
    "num-server-rounds": ROUNDS,
    "minimum-reports": 2,
    "local-steps": 1,
}
SIMULATIONS: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    ({"simulated-aggregators": 2}, {"sum": {}, "verified sum": {"verified": True}}),
    ({"simulated-mixers": 2}, {"two mix nodes": {}}),
]
"""The run-config of all nodes; and by what is tried, what the server app is told beside it."""


def simulate(told: dict[str, Any], runs: dict[str, dict[str, Any]]) -> None:
    """One of the simulations."""
    run_id = secrets.randbits(60)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for name, more in runs.items():
            config = get_fused_config_from_dir(EXAMPLE, RUN_CONFIG | told | more)
            with redirect_stdout(io.StringIO()) as printed:
                server_app.main(grid, dataclasses.replace(context, run_config=config))
            print(f"example with {name}: {printed.getvalue().splitlines()[-1]}", flush=True)

    run = Run.create_empty(run_id=run_id)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    run.override_config = RUN_CONFIG | told
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID
    _run_simulation(
        num_supernodes=NODES,
        exit_event=EventType.FLWR_SIMULATION_RUN_LEAVE,
        client_app=client_app.app,
        server_app=server,
        app_dir=str(EXAMPLE),
        is_app=True,
        run=run,
        backend_config={
            "init_args": {"num_cpus": 1},  # one actor: every further one imports PyTorch again
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
        },
    )
    shutil.rmtree(_folder_of(run_id))  # the keys, which somebody has made
