"""Two processes over gloo on this machine; one spawn runs every scenario, the tests read what it saw."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_imports import import_before_forks
from opacus import GradSampleModule
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import Delivery, DistributedShuffleDPOptimizer, PrivacyEngine, ShufflePrivacyError
from opacus_transparent import Transparent
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.mechanisms import BinaryRandomizedResponse, registry
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import SeededRandomness

pytestmark = pytest.mark.process

WORLD = 2
N, K = 40, 9
MANY = 120  # so that of MANY / 2 Poisson cohorts of two, some surely have less than one for each rank
DIM = 6 * 3 + 3


def records(count: int = N) -> TensorDataset:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, torch.arange(count))


def model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def private(wrapper: Any = DifferentiallyPrivateDistributedDataParallel, **options: Any) -> Any:
    engine = PrivacyEngine(accountant="subsampled_shuffle_rdp")
    # Different weights on each rank: wrapping must synchronise them.
    module = wrapper(model(seed=3 + distributed.get_rank()))
    arguments = {
        "randomizer": "linf-coordinate",
        "local_epsilon": 2.0,
        "max_grad_norm": 0.5,
        "data_loader": DataLoader(records(), batch_size=K),
        **options,
    }
    return engine, *engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), **arguments
    )


def step(module: nn.Module, optimizer: Any, batch: Any) -> None:
    x, index = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), index % 3).backward()
    optimizer.step()


def outcome(module: nn.Module, engine: PrivacyEngine, **more: Any) -> dict[str, Any]:
    return {
        "weights": torch.cat([p.detach().flatten() for p in module.parameters()]).tolist(),
        "history": json.loads(json.dumps(engine.accountant.history)),
        "epsilon": engine.get_epsilon(1e-5),
        **more,
    }


def train_with(**options: Any) -> dict[str, Any]:
    engine, module, optimizer, loader = private(**options)
    assert isinstance(optimizer, DistributedShuffleDPOptimizer)
    indices, sums = [], []
    for x, index in loader:
        step(module, optimizer, (x, index))
        indices.append(index.tolist())
        sums.append(next(iter(module.parameters())).summed_grad.flatten().tolist())
    return outcome(
        module, engine, indices=indices, sums=sums, expected=optimizer.expected_batch_size, steps=len(loader)
    )


def default() -> dict[str, Any]:
    return train_with()


def torch_ddp() -> dict[str, Any]:
    return train_with(wrapper=DistributedDataParallel)


def poisson() -> dict[str, Any]:
    return train_with(sampling="poisson", data_loader=DataLoader(records(MANY), batch_size=2))


def same_coins() -> dict[str, Any]:
    try:
        private(randomness=SeededRandomness(7))
    except ShufflePrivacyError as error:
        return {"error": str(error)}
    return {"error": None}


def reference() -> dict[str, Any]:
    """One step without coins against Opacus's own optimizer, without noise, on the whole cohort."""
    _, module, optimizer, loader = private(randomizer=Transparent)
    x, index = next(iter(loader))
    step(module, optimizer, (x, index))
    parts: list[Any] = [None] * WORLD
    distributed.all_gather_object(parts, index.tolist())
    whole = sorted(i for part in parts for i in part)
    plain = GradSampleModule(model())
    dp = DPOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=K,
    )
    step(plain, dp, records()[whole])
    gap = max(
        float((p - q).detach().abs().max())
        for p, q in zip(module.parameters(), plain.parameters(), strict=True)
    )
    return {"gap": gap, "cohort": whole}


def memory_manager() -> dict[str, Any]:
    """k = 9 splits into 5 and 4: two physical batches of at most 4 on one rank, one on the other."""
    engine, module, optimizer, loader = private()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as split:
        chunks = 0
        for batch in split:
            step(module, optimizer, batch)
            chunks += 1
    return outcome(module, engine, chunks=chunks)


def refusals() -> dict[str, Any]:
    """A refusal on one rank is a refusal on all; afterwards both go on together."""
    engine, module, optimizer, loader = private(on_nonfinite="raise")
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    errors = []
    for case in ("nan on rank 1", "short on rank 0", "hook missing on rank 1", "chunk with nan on rank 0"):
        x, index = next(iter(loader))
        if case == "nan on rank 1" and distributed.get_rank() == 1:
            x = x * math.nan
        if case == "short on rank 0" and distributed.get_rank() == 0:
            x, index = x[:-1], index[:-1]
        hooks = optimizer._hooks
        if case == "hook missing on rank 1" and distributed.get_rank() == 1:
            optimizer._hooks = ()
        if case == "chunk with nan on rank 0" and distributed.get_rank() == 0:
            optimizer.begin_iteration()
            optimizer.expect_batch(Delivery(rows=len(x), part=0, parts=2))
            x = x * math.nan
        try:
            step(module, optimizer, (x, index))
            errors.append("none")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        if case == "chunk with nan on rank 0" and distributed.get_rank() == 0:
            optimizer.expect_batch(Delivery(rows=2, part=1, parts=2))
            step(module, optimizer, (torch.randn(2, 6), torch.tensor([0, 1])))
        optimizer._hooks = hooks
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    recorded = len(engine.accountant)
    for batch in loader:
        step(module, optimizer, batch)
    return outcome(module, engine, errors=errors, unmoved=bool(torch.equal(before, after)), recorded=recorded)


def disagreement() -> dict[str, Any]:
    """One rank changes ε0 on its own."""
    engine, module, optimizer, loader = private()
    if distributed.get_rank() == 0:
        optimizer.local_epsilon = 1.0
    try:
        step(module, optimizer, next(iter(loader)))
    except ShufflePrivacyError as error:
        return outcome(module, engine, error=str(error))
    return outcome(module, engine, error=None)


def vector_sum() -> dict[str, Any]:
    """What each rank gave, what was tossed where, and what came out, in whole steps of the lattice."""
    engine, module, optimizer, loader = private(
        randomizer="vector-sum", local_epsilon=None, noise_multiplier=3.0
    )
    seen: dict[str, list[list[int]]] = {"shares": [], "coins": [], "estimates": []}
    with pytest.MonkeyPatch.context() as patch:
        for name, kept in {"share": "shares", "common_noise": "coins", "estimate": "estimates"}.items():
            original = getattr(VectorSum, name)

            def watched(*given: Any, original: Any = original, kept: str = kept, **named: Any) -> Any:
                seen[kept].append((found := original(*given, **named)).tolist())
                return found

            patch.setattr(VectorSum, name, watched)
        before = torch.cat([p.detach().flatten() for p in module.parameters()])
        batches = iter(loader)
        step(module, optimizer, next(batches))
        moved = torch.cat([p.detach().flatten() for p in module.parameters()]) - before
        for batch in batches:
            step(module, optimizer, batch)
    protocol = optimizer.mechanism
    return outcome(
        module,
        engine,
        moved=moved.tolist(),
        step=protocol.lattice.step,
        levels=protocol.levels,
        coins_each=protocol.coins,
        **seen,
    )


def attempts(module: nn.Module, optimizer: Any, batches: Any) -> list[str]:
    errors = []
    for batch in batches:
        try:
            step(module, optimizer, batch)
            errors.append("none")
        except ShufflePrivacyError as error:
            errors.append(str(error))
    return errors


def skipped_on_one_rank() -> dict[str, Any]:
    """Rank 0 leaves its first batch out, so it is always one draw ahead of rank 1."""
    engine, module, optimizer, loader = private()
    batches = list(loader)  # of which only the last one may be stepped on
    alone = attempts(module, optimizer, batches[:1])
    skipping = itertools.islice(loader, 1 - distributed.get_rank(), 4 - distributed.get_rank())
    return outcome(module, engine, collected=alone, errors=attempts(module, optimizer, skipping))


def looked_at_on_one_rank() -> dict[str, Any]:
    """Rank 0 evaluates on the training loader, which rank 1 does not."""
    engine, module, optimizer, loader = private()
    if distributed.get_rank() == 0:
        for _ in loader:
            pass
    return outcome(module, engine, errors=attempts(module, optimizer, loader))


def broken_off() -> dict[str, Any]:
    """With workers and physical batches the ranks have drawn ahead differently when they break off."""
    workers = {"num_workers": 2, "prefetch_factor": 2, "multiprocessing_context": "fork"}  # Linux's own way
    data_loader = DataLoader(records(), batch_size=K, **workers)
    engine, module, optimizer, loader = private(data_loader=data_loader)
    indices: list[list[int]] = []
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as split:
        for rounds in (1, 4):
            before = len(engine.accountant)
            indices.append([])
            for x, index in split:
                step(module, optimizer, (x, index))
                indices[-1] += index.tolist()
                if len(engine.accountant) == before + rounds:
                    break
                if not optimizer._check_skip_next_step(pop_next=False):
                    indices.append([])
    return outcome(module, engine, indices=indices)


def epoch() -> dict[str, Any]:
    return train_with(sampling="epoch")


def adaptive() -> dict[str, Any]:
    """The radius after each of eight steps, of reports and of sums."""
    radii: dict[str, list[float]] = {}
    for name, noise in {
        "privunit": {},
        "vector-sum": {"local_epsilon": None, "noise_multiplier": 4.0},
    }.items():
        engine, module, optimizer, loader = private(
            randomizer=name, clipping="adaptive", target_unclipped_quantile=0.6, **noise
        )
        radii[name] = []
        for _ in range(2):
            for batch in loader:
                step(module, optimizer, batch)
                radii[name].append(optimizer.max_grad_norm)
    return outcome(module, engine, radii=radii)


SCENARIOS = [
    default,
    torch_ddp,
    poisson,
    same_coins,
    reference,
    memory_manager,
    refusals,
    disagreement,
    vector_sum,
    skipped_on_one_rank,
    looked_at_on_one_rank,
    broken_off,
    epoch,
    adaptive,
]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    results = {scenario.__name__: scenario() for scenario in SCENARIOS}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two-processes")
    import_before_forks(__name__)
    torch.multiprocessing.start_processes(
        worker, args=(str(folder),), nprocs=WORLD, start_method="forkserver"
    )
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(WORLD)]


ALIKE = ["default", "torch_ddp", "poisson", "memory_manager", "refusals", "vector_sum"]


@pytest.mark.parametrize("scenario", [*ALIKE, "broken_off", "epoch", "adaptive"])
def test_weights_and_history_agree_on_both_ranks(ranks: Any, scenario: str) -> None:
    first, second = (rank[scenario] for rank in ranks)
    assert first["weights"] == second["weights"]
    assert first["history"] == second["history"]
    assert first["epsilon"] == second["epsilon"]


def test_epsilon_is_that_of_the_global_n_and_k(ranks: Any) -> None:
    core = ShuffleAccountant(method="rdp")
    mechanism = registry.get("linf-coordinate", local_epsilon=2.0, dim=DIM)
    core.step(mechanism.round(population=N, cohort=K), num_steps=N // K)
    assert ranks[0]["default"]["epsilon"] == core.epsilon(1e-5).upper
    assert ranks[0]["default"]["steps"] == N // K
    assert ranks[0]["default"]["expected"] == K / WORLD


@pytest.mark.parametrize("scenario", ["default", "torch_ddp", "epoch"])
def test_each_rank_takes_its_part_of_one_cohort_of_k(ranks: Any, scenario: str) -> None:
    for parts in zip(*(rank[scenario]["indices"] for rank in ranks), strict=True):
        assert [len(p) for p in parts] == [5, 4]
        assert len(set(parts[0]) | set(parts[1])) == K
    cohorts = [tuple(sorted(a + b)) for a, b in zip(*(r[scenario]["indices"] for r in ranks), strict=True)]
    assert len(set(cohorts)) == len(cohorts)


def test_a_poisson_cohort_is_split_too_and_empty_parts_are_steps(ranks: Any) -> None:
    parts = list(zip(*(rank["poisson"]["indices"] for rank in ranks), strict=True))
    assert len(parts) == MANY // 2
    assert all(not set(a) & set(b) and len(a) - len(b) in (0, 1) for a, b in parts)
    assert any(not b for _, b in parts)
    assert len({len(a) + len(b) for a, b in parts}) > 1
    assert ranks[0]["poisson"]["history"][0][1] == MANY // 2


def test_the_coins_of_the_ranks_differ(ranks: Any) -> None:
    first, second = (rank["default"]["sums"] for rank in ranks)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_a_shared_seed_is_refused_on_every_rank(ranks: Any) -> None:
    assert all("share a stream" in rank["same_coins"]["error"] for rank in ranks)


def test_without_coins_the_step_is_that_of_one_process(ranks: Any) -> None:
    assert len(ranks[0]["reference"]["cohort"]) == K
    assert all(rank["reference"]["gap"] < 1e-6 for rank in ranks)


def test_physical_batches_may_differ_in_number_between_ranks(ranks: Any) -> None:
    assert [rank["memory_manager"]["chunks"] for rank in ranks] == [2 * (N // K), N // K]
    assert ranks[0]["memory_manager"]["history"][0][1] == N // K


def test_one_ranks_refusal_is_everybodys(ranks: Any) -> None:
    first, second = (rank["refusals"]["errors"] for rank in ranks)
    assert "another process" in first[0]
    assert "NaN" in second[0]
    assert "processed 4 gradients, its batch has 5 records" in first[1]
    assert "another process" in second[1]
    assert "another process" in first[2]
    assert "no shuffle accountant" in second[2]
    assert "NaN" in first[3]
    assert "another process" in second[3]
    for rank in ranks:
        assert rank["refusals"]["unmoved"]
        assert rank["refusals"]["recorded"] == 3  # the four batches are recorded when the next one comes
        assert rank["refusals"]["history"][0][1] == 4 + N // K


def test_ranks_must_agree_on_the_round(ranks: Any) -> None:
    assert all("disagree on the round" in rank["disagreement"]["error"] for rank in ranks)
    assert all(rank["disagreement"]["history"] == [] for rank in ranks)
    assert ranks[0]["disagreement"]["weights"] == ranks[1]["disagreement"]["weights"]


@pytest.mark.parametrize("scenario", ["skipped_on_one_rank", "looked_at_on_one_rank"])
def test_parts_of_two_draws_do_not_meet(ranks: Any, scenario: str) -> None:
    for number, rank in enumerate(ranks):
        assert len(rank[scenario]["errors"]) == (3 if scenario == "skipped_on_one_rank" else N // K)
        assert all("disagree on the round" in error for error in rank[scenario]["errors"])
        # A refused batch is one that was passed over. Four are of the list; of the others the last one is
        # recorded when the next one comes, or the iteration ends. Rank 0 skipped one more.
        passed_over = 4 + 3 - number if scenario == "skipped_on_one_rank" else N // K
        assert sum(steps for _, steps in rank[scenario]["history"]) == passed_over
    assert ranks[0][scenario]["weights"] == ranks[1][scenario]["weights"]


def test_a_batch_of_a_list_is_refused_on_every_rank(ranks: Any) -> None:
    for rank in ranks:
        (error,) = rank["skipped_on_one_rank"]["collected"]
        assert "of an earlier one" in error


def test_ranks_stay_together_after_an_iteration_was_broken_off(ranks: Any) -> None:
    first, second = (rank["broken_off"]["indices"] for rank in ranks)
    assert [len(part) for part in first] == [5] * 5
    assert [len(part) for part in second] == [4] * 5
    assert all(len({*a, *b}) == K for a, b in zip(first, second, strict=True))
    assert ranks[0]["broken_off"]["history"][0][1] == 5


def test_an_epoch_over_two_ranks_uses_a_record_once_and_costs_one_round(ranks: Any) -> None:
    used = [i for rank in ranks for part in rank["epoch"]["indices"] for i in part]
    assert len(set(used)) == len(used) == N // K * K
    assert ranks[0]["epoch"]["history"][0][1] == 1


@pytest.mark.parametrize("randomizer", ["privunit", "vector-sum"])
def test_an_adaptive_radius_moves_by_all_ranks_bits_and_alike(ranks: Any, randomizer: str) -> None:
    first, second = (rank["adaptive"]["radii"][randomizer] for rank in ranks)
    assert first == second
    assert len(set(first)) == len(first) == 2 * (N // K)
    if randomizer == "privunit":  # K signs of one absolute value: their sum is one of K + 1 numbers
        bit = BinaryRandomizedResponse(local_epsilon=0.2)  # a tenth of ε0
        for before, after in itertools.pairwise([0.5, *first]):
            share = 0.6 - math.log(after / before) / 0.2
            signs = (2 * share - 1) * K / bit.report_value
            assert signs == pytest.approx(round(signs), abs=1e-3)
            assert round(signs) % 2 == K % 2


def test_coins_of_a_sum_are_tossed_once_for_all_ranks(ranks: Any) -> None:
    first, second = (rank["vector_sum"] for rank in ranks)
    assert len(first["coins"]) == N // K
    assert second["coins"] == []
    tossed = torch.tensor(first["coins"])
    assert int(tossed.max()) <= K * first["coins_each"]
    middle = tossed.double() - K * first["coins_each"] / 2
    variance = K * first["coins_each"] / 4
    assert abs(float(middle.square().mean()) / variance - 1) < 7 * math.sqrt(2 / middle.numel())


def test_the_released_sum_is_the_exact_total_of_all_ranks(ranks: Any) -> None:
    first, second = (rank["vector_sum"] for rank in ranks)
    total = torch.tensor(first["shares"]) + torch.tensor(second["shares"]) + torch.tensor(first["coins"])
    expected = (total.double() - K * (first["levels"] + first["coins_each"] / 2)) * first["step"]
    for rank in (first, second):
        torch.testing.assert_close(torch.tensor(rank["estimates"], dtype=torch.float64), expected)
        moved = torch.tensor(rank["moved"])
        assert torch.allclose(moved, -0.1 / K * expected[0].float(), atol=1e-6)
