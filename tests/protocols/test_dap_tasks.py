"""Protocols as tasks of DAP deployments, in the forms that janus and divviup-api record in their tests."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from thinning import first_fast

from shuffle_plugins.cli import main
from shuffle_plugins.protocols import (
    BallSum,
    CountedUnary,
    FrequencyEstimation,
    HistogramSum,
    SplitSum,
    UnaryL1Sum,
    VectorSum,
    dap_task,
)
from shuffle_plugins.protocols.dap import DapTask, Vdaf
from shuffle_plugins.secure_aggregation.prio3 import Prio3MultihotCountVec, Prio3SumVec
from shuffle_plugins.secure_aggregation.prio3.circuits import best_chunk_length

BITS = CountedUnary(length=256, cohort=1_000, bit_epsilon=5.0, max_weight=14)


# Recorded from janus at 4ab28a36: messages/src/tests/task.rs, roundtrip_vdaf_config.
@pytest.mark.parametrize(
    ("vdaf", "length", "most", "chunk_length", "recorded"),
    [
        (Vdaf.SUM_VEC, 12, 8, 14, "0000000300100000000C00000000000000080000000E"),
        (Vdaf.MULTIHOT_COUNT_VEC, 256, 14, 18, "00000005001000000100" + "00000012" + "000000000000000E"),
    ],
)
def test_the_message_is_the_one_that_janus_records(
    monkeypatch: pytest.MonkeyPatch, vdaf: Vdaf, length: int, most: int, chunk_length: int, recorded: str
) -> None:
    monkeypatch.setattr("shuffle_plugins.protocols.dap.best_chunk_length", lambda _: chunk_length)
    task = DapTask(vdaf=vdaf, length=length, most=most, min_batch_size=100, client={})
    assert task.vdaf_config().hex().upper() == recorded


def test_chunk_lengths_are_those_of_libprio() -> None:
    """libprio-rs, src/vdaf/prio3.rs, test_optimal_chunk_length."""
    recorded = {1: 1, 2: 2, 3: 1, 18: 6, 19: 3, 40: 6, 10_000: 79, 100_000: 393}
    assert {bits: best_chunk_length(bits) for bits in recorded} == recorded
    assert dap_task(BITS).chunk_length == best_chunk_length(256 + 4)
    assert dap_task(BITS, vdaf="Prio3SumVec").chunk_length == best_chunk_length(256)


def test_the_shapes_of_janus_and_divviup() -> None:
    """janus core/src/vdaf.rs, vdaf_serialization; divviup-api src/entity/task/vdaf/tests/serde.rs."""
    task = dap_task(CountedUnary(length=8, cohort=500, bit_epsilon=3.0), vdaf="Prio3SumVec")
    assert task.janus() == {
        "vdaf": {
            "Prio3SumVec": {
                "max_measurement": 1,
                "length": 8,
                "chunk_length": 3,
                "dp_strategy": {"dp_strategy": "NoDifferentialPrivacy"},
            }
        },
        "min_batch_size": 500,
    }
    assert task.janus_yaml() == (
        "vdaf: !Prio3SumVec\n  max_measurement: 1\n  length: 8\n  chunk_length: 3\n  dp_strategy:\n"
        "    dp_strategy: NoDifferentialPrivacy\nmin_batch_size: 500\n"
    )
    assert task.divviup() == {
        "vdaf": {
            "type": "sum_vec",
            "bits": 1,
            "length": 8,
            "chunk_length": 3,
            "dp_strategy": {"dp_strategy": "NoDifferentialPrivacy"},
        },
        "min_batch_size": 500,
    }


def test_the_names_are_those_of_the_draft_s_test_vectors() -> None:
    """draft-irtf-cfrg-vdaf, test_vec/vdaf/Prio3MultihotCountVec_0.json and Prio3SumVec_0.json."""
    assert dap_task(BITS).parameters == {"length": 256, "max_weight": 14, "chunk_length": 18}
    counts = VectorSum(dim=5, cohort=200, levels=6, coins=40)
    task = dap_task(counts)
    assert (task.vdaf, task.parameters["max_measurement"]) == (Vdaf.SUM_VEC, counts.messages_per_coordinate)
    assert task.offset == 0  # of so few coins every number of heads is drawn
    assert set(task.parameters) == {"length", "max_measurement", "chunk_length"}
    assert dap_task(HistogramSum(categories=9, cohort=200, levels=2, coins=40)).length == 9
    assert dap_task(UnaryL1Sum(dim=9, cohort=200, bit_epsilon=2.0)).parameters["max_weight"] == 18


def test_what_does_not_fit_is_refused() -> None:
    for protocol in (
        SplitSum(cohort=20, levels=1, noise_epsilon=1.0, shares=4),
        BallSum(dim=6, cohort=40, budget=20.0, samples=5),
        FrequencyEstimation(categories=4, cohort=100, local_epsilon=2.0, oracle="oue"),
    ):
        with pytest.raises(ValueError, match="no VDAF adds up"):
            dap_task(protocol)
    with pytest.raises(ValueError, match="sends counts"):
        dap_task(VectorSum(dim=5, cohort=200, levels=6, coins=40), vdaf="Prio3MultihotCountVec")
    with pytest.raises(ValueError, match="janus does not run"):
        dap_task(BITS).janus()
    with pytest.raises(ValueError, match="Divvi Up does not run"):
        dap_task(BITS).divviup()
    with pytest.raises(ValueError, match="at least 100"):
        dap_task(CountedUnary(length=8, cohort=50, bit_epsilon=3.0), vdaf="Prio3SumVec").divviup()
    with pytest.raises(ValueError, match="vectors of up to"):
        DapTask(vdaf=Vdaf.SUM_VEC, length=1 << 32, most=1, min_batch_size=100, client={})


@pytest.mark.slow
def test_flipped_bits_go_through_the_vdaf() -> None:
    """The sum that two aggregators find, proofs checked, is the protocol's total."""
    protocol = CountedUnary(length=6, cohort=2, bit_epsilon=1.0, max_weight=3)
    prio3 = Prio3MultihotCountVec(**dap_task(protocol).parameters)
    sent = protocol.randomize(torch.tensor([1, 5]))
    context, key = b"a task", bytes(32)
    shares = [prio3.agg_init() for _ in range(2)]
    for bits in sent.fields[0].values.tolist():
        report = prio3.shard(bits, context=context)
        states, verifiers = zip(
            *(
                prio3.verify_init(
                    verify_key=key,
                    context=context,
                    aggregator=aggregator,
                    nonce=report.nonce,
                    public_share=report.public_share,
                    input_share=report.input_shares[aggregator],
                )
                for aggregator in range(2)
            ),
            strict=True,
        )
        message = prio3.verifier_shares_to_message(verifiers, context=context)
        shares = [
            prio3.agg_update(share, prio3.verify_next(state, message))
            for share, state in zip(shares, states, strict=True)
        ]
    found = prio3.unshard([prio3.encode_agg_share(share) for share in shares], num_measurements=2)
    assert np.array_equal(np.asarray(found), protocol.total(sent).numpy())
    with pytest.raises(ValueError, match="3"):
        prio3.shard([1] * 6, context=context)


@first_fast(
    "protocol",
    [
        HistogramSum(categories=5, cohort=3, levels=20, coins=20_000),
        VectorSum(dim=5, cohort=3, levels=6, coins=20_000),
    ],
)
def test_counts_of_coins_are_proven_in_the_range_of_what_is_drawn(protocol: VectorSum | HistogramSum) -> None:
    """A range several times shorter, once every client has taken the offset off; ``total`` puts it back."""
    task = dap_task(protocol)
    assert 0 < task.offset == task.client["offset"]
    assert 2 * task.parameters["max_measurement"] < protocol.messages_per_coordinate
    people = torch.zeros(3, 5) if isinstance(protocol, VectorSum) else torch.tensor([0, 1, 1])
    reports = protocol.randomize(people)
    counts = reports.fields[0].values.reshape(3, 5).to(torch.int64)
    prio3 = Prio3SumVec(**task.parameters)
    for client in counts - task.offset:
        prio3.shard(client.numpy(), context=b"a task")  # in range
    with pytest.raises(ValueError, match=r"range|0 to|at most|between"):
        prio3.shard(counts[0].numpy() + task.most, context=b"a task")
    sums = (counts - task.offset).sum(dim=0)
    assert torch.equal(task.total(sums, reports=3), protocol.total(reports))
    for wrong in (sums[:4], sums - (1 << 40), sums + (1 << 40)):
        with pytest.raises(ValueError, match="sums"):
            task.total(wrong, reports=3)


def test_the_command_says_who_must_know_the_offset(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["dap-task", "--length", "4", "--cohort", "100", "--target-epsilon", "0.5", "--delta", "1e-8"]
    asked += ["--protocol", "vector-sum"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    offset = found["client"]["offset"]
    assert offset > 0
    for form in ("janus", "divviup"):
        assert main([*asked, "--format", form]) == 0
        printed = capsys.readouterr()
        assert f"{offset:,}" in printed.err
        assert "offset" not in printed.out


def test_the_command_says_where_no_lower_bound_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """0 would read as a bound. With one bit there are not the two in which the instance of OUE differs."""
    asked = ["dap-task", "--length", "1", "--cohort", "2000", "--target-epsilon", "1", "--delta", "1e-6"]
    assert main([*asked, "--encoding", "optimal"]) == 0
    epsilon = json.loads(capsys.readouterr().out)["epsilon"]
    assert (epsilon["lower"], epsilon["lower_bound"]) == (None, "none")
    assert epsilon["upper_bound"] == "composed counts, PLD"


def test_the_command_prints_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["dap-task", "--length", "20", "--cohort", "2000", "--target-epsilon", "1", "--delta", "1e-6"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vdaf"]["type"] == "Prio3MultihotCountVec"
    assert found["epsilon"]["upper"] <= 1.0
    assert found["client"]["EPSILON_0"] > 1
    assert 0.95 < found["epsilon"]["lower"] <= found["epsilon"]["upper"]
    assert found["epsilon"]["lower_bound"] == "counted bits instance"
    assert main([*asked, "--format", "janus", "--encoding", "optimal"]) == 0
    assert capsys.readouterr().out.startswith("vdaf: !Prio3SumVec\n  max_measurement: 1\n  length: 20\n")
    assert main([*asked, "--format", "divviup", "--protocol", "histogram-sum"]) == 0
    assert json.loads(capsys.readouterr().out)["vdaf"]["type"] == "sum_vec"
    assert main([*asked, "--format", "janus", "--vdaf", "Prio3MultihotCountVec"]) == 2
    assert "janus does not run" in capsys.readouterr().err
