"""A cascade of two mix nodes as real processes: runs are trained through both, also after one was killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deployed_parties import Parties
from flwr_shuffle.service_messages import SERVICE_KEY
from processes import Deployment, wait_for

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


def test_runs_through_two_mixers(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", tmp_path / "deployment"
    notes.mkdir()
    folder.mkdir()
    with Deployment(folder, variables={"TESTED_APP_FOLDER": str(notes)}) as deployment:
        parties = Parties.start(deployment, notes=notes, clients=3, mixers=2)
        for turn in range(2):
            run = parties.start_run(
                f"row-{turn}", num_server_rounds=1, participation=1.0, population=3, minimum_reports=2
            )
            wait_for(lambda run=run: run.exit_code is not None, seconds=600, what="the run")
            assert (notes / "finished").exists(), run.text()
            (notes / "finished").unlink()
            [later] = parties.later_mixers
            later.kill()
            parties.later_mixers = [parties.start_mixer(1)]
        sent = [told["records"] for told in parties.noted("seen") if told["direction"] == "sent"]
        batches = [records for records in sent if "items" in records.get(SERVICE_KEY, {})]
        assert len(batches) == 4  # one message to each mixer in each run
        for name in ("mixer", "mixer-1"):
            assert list((folder / "secrets" / f"{name}.key.batches").iterdir()) == []
