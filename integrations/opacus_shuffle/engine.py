"""Opacus's ``PrivacyEngine`` for the subsampled shuffle model, and what a run costs before its first step."""

from __future__ import annotations

import copy
import functools
import logging
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import IO, Any, BinaryIO, Literal, TypedDict, Unpack

import opacus
import torch
from opacus.accountants import IAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.validators.errors import UnsupportedModuleError
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from opacus_shuffle.accountants import (
    ShufflePrivacyError,
    StepLog,
    SubsampledShuffleAccountant,
    begins_with,
    checked,
    warn_caller,
)
from opacus_shuffle.loaders import (
    SAMPLERS,
    checked_sampling,
    population_and_cohort,
    refuse_iterable,
    rounds_in,
    seed_from,
    with_sampler,
)
from opacus_shuffle.optimizer import (
    BOOKS,
    DistributedShuffleDPOptimizer,
    ShuffleDPOptimizer,
    ShuffleMixin,
    refuse_evaluation_mode,
)
from opacus_shuffle.sums import (
    DEFAULT_RANDOMIZER,
    AdaptiveClipping,
    Randomizer,
    RoundSum,
    SumSetting,
    clipping_of,
    positive,
)
from shuffle_plugins.accounting import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    DataAccess,
    EpsilonInterval,
    PrivacyStatement,
    PrivacyTarget,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    Unit,
    delta_warning,
)
from shuffle_plugins.accounting.calibrate import LEAST_SEARCHED_LOCAL_EPSILON, normal_guess
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.core import checks, rounded
from shuffle_plugins.mechanisms.noise import noise_ratio
from shuffle_plugins.planning import (
    ExpectedNoise,
    TrainingRecipe,
    expected_noise,
    training_recipe,
)
from shuffle_plugins.planning.recipes import ModelKind
from shuffle_plugins.randomness import Randomness, SeededRandomness, secure

_logger = logging.getLogger(__name__)

GradSampleMode = Literal["hooks", "functorch", "ew", "no_op"]
SamplingName = Literal["without-replacement", "poisson", "epoch"]
PrivateObjects = tuple[Any, ShuffleDPOptimizer | DistributedShuffleDPOptimizer, DataLoader[Any]]

_TWO_DATA_SETS = (
    "this engine has accounted for another data set before: its ε composes both, as if every person were "
    "in each"
)


class OpacusArguments(TypedDict, total=False):
    """What scripts for Opacus may pass to ``make_private`` beside the options that mean more here.

    The last five go with ``clipping="adaptive"``, as of :class:`AdaptiveClipping`.
    """

    poisson_sampling: bool | None  # False is "without-replacement", or "epoch" if ``sampling`` says so
    criterion: nn.Module | None  # not used
    noise_generator: None  # ``randomness`` takes its place
    rand_on_empty: bool  # must stay False: an empty Poisson round is of no records, not of invented ones
    target_unclipped_quantile: float | None
    clipbound_learning_rate: float | None
    min_clipbound: float | None
    max_clipbound: float | None
    unclipped_num_std: float | None


class PrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """Trains under the subsampled shuffle model; use it in place of ``opacus.PrivacyEngine``.

    Every sample's gradient is clipped and randomised, and only the sum over a randomly drawn cohort is
    released. ε is for replace-one neighbours at fixed n, against an observer of the model.

    Example:
        >>> from opacus_shuffle import PrivacyEngine
        >>> engine = PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=optimizer, data_loader=loader,
        ...     randomizer="privunit", local_epsilon=4.0, max_grad_norm=1.0,
        ... )  # doctest: +SKIP
    """

    def __init__(self, *, accountant: str = "subsampled_shuffle_pld", secure_mode: bool = False) -> None:
        """Create an engine with an empty history.

        ``accountant`` is ``"subsampled_shuffle_pld"`` (tight), ``"subsampled_shuffle_rdp"`` (fast), or for
        comparison ``"girgis-2021"``. Coins and sampling come from a cryptographic generator either way;
        ``secure_mode`` also refuses a seeded ``randomness``.
        """
        self._in_use = False
        self._doubts: tuple[str, ...] = ()  # what weakens a privacy statement
        self._optimizers: tuple[ShuffleMixin, ...] = ()
        self._training_plan: TrainingPlan | None = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            super().__init__(accountant=accountant, secure_mode=False)
        self._require_accountant()
        self.secure_mode = secure_mode
        self.dataset: Dataset[Any] | None = None
        self.data_loader: DataLoader[Any] | None = None
        """The loader that the last call returned: what a training framework must iterate over."""

    @property
    def accountant(self) -> IAccountant:
        """Where rounds are recorded; assign one of ours before ``make_private`` to use one of your own."""
        return self._accountant

    @accountant.setter
    def accountant(self, value: IAccountant) -> None:
        if self._in_use:
            raise ShufflePrivacyError(
                "training records into this engine's present accountant, and a new one would report ε "
                "without those rounds: assign it before make_private, or create another engine"
            )
        self._accountant = value

    @property
    def training_plan(self) -> TrainingPlan:
        """What the run will cost, as it was when the last call made an optimizer private; print it."""
        if self._training_plan is None:
            raise ShufflePrivacyError(
                "nothing is planned yet: call make_private_with_epsilon or make_private first"
            )
        return self._training_plan

    @staticmethod
    def training_recipe(
        *,
        module: nn.Module,
        dataset: Dataset[Any],
        target_epsilon: float,
        target_delta: float,
        randomizer: str = DEFAULT_RANDOMIZER,
        batch_size: int | None = None,
        num_steps: int | None = None,
    ) -> TrainingRecipe:
        """Recommend batch size, steps, clipping and learning rate for a model and a target; ``print`` it.

        For a run by itself, without what this engine may have recorded already. The data set is asked for its
        length and nothing else, so this costs no privacy.

        Args:
            module: the model. If one ``nn.Linear`` holds all parameters to train, the recipe is that of a
                linear classifier, whose rows must have length one; otherwise that of a network.
            randomizer: for one report per record, a registered randomizer of vectors in an ℓ2 ball, or
                ``"best"`` for the best of them; or ``"vector-sum"``.
        """
        refuse_iterable(dataset)
        trained = [p for p in module.parameters() if p.requires_grad]
        wanted = {id(p) for p in trained}
        linear = any(
            isinstance(part, nn.Linear) and wanted <= {id(p) for p in part.parameters()}
            for part in module.modules()
        )
        return training_recipe(
            target_epsilon=target_epsilon,
            delta=checked(checks.delta, target_delta, name="target_delta"),
            population=len(dataset),  # type: ignore[arg-type]
            dim=sum(p.numel() for p in trained),
            model=ModelKind.LINEAR if linear else ModelKind.NETWORK,
            mechanism=randomizer,
            cohort=batch_size,
            num_steps=num_steps,
        )

    def _require_accountant(self) -> SubsampledShuffleAccountant:
        if not isinstance(self.accountant, SubsampledShuffleAccountant):
            raise ShufflePrivacyError(
                f"{type(self.accountant).__name__} cannot account for shuffled rounds: use "
                "accountant='subsampled_shuffle_pld' or 'subsampled_shuffle_rdp'"
            )
        return self.accountant

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        local_epsilon: float | Sequence[float] | torch.Tensor | None = None,
        noise_multiplier: float | None = None,
        max_grad_norm: float | Sequence[float],
        randomizer: Randomizer = DEFAULT_RANDOMIZER,
        sampling: SamplingName | None = None,
        clipping: str | AdaptiveClipping = "flat",
        batch_first: bool = True,
        loss_reduction: str = "mean",
        grad_sample_mode: GradSampleMode = "hooks",
        wrap_model: bool = True,
        on_nonfinite: Literal["zero", "raise"] = "zero",
        randomness: Randomness | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        **opacus_own: Unpack[OpacusArguments],
    ) -> PrivateObjects:
        """Add local randomisation, shuffling and accounting to the three training objects.

        n is ``len(data_loader.dataset)`` and k is ``data_loader.batch_size``, over all processes. The
        returned loader draws its batches anew: exactly k of n without replacement, or Poisson with
        rate k / n.

        Args:
            module: model to train; wrap it in Opacus's ``DifferentiallyPrivateDistributedDataParallel`` (or
                torch's DDP) first to train over several processes.
            data_loader: map-style data set, ``batch_size=k``, plain or shuffled order; the whole data set and
                the same one in every process.
            local_epsilon: for local randomizers ε0 of one sample's gradient in one step, in nats, spent once
                over all parameters. With ``"poisson"`` also one for each record, in the order of the data
                set: they are taken to be public, and must not follow from the data. The loader then delivers
                a round in one physical batch for each level, as ``BatchMemoryManager`` splits one; ε is of
                those who lose most, and :meth:`get_epsilon_interval` has that of each level.
            noise_multiplier: for ``"vector-sum"`` and ``"multi-message"`` the standard deviation, over
                ``max_grad_norm``, of Gaussian noise in each coordinate of the sum that would give about the
                same privacy. As in Opacus, except that a record is replaced and not left out, which moves the
                sum by up to twice ``max_grad_norm``.
            max_grad_norm: radius of the randomizer's norm ball, to which gradients are clipped. With
                ``clipping="per_layer"`` a list, one for each trainable parameter in the optimizer's order.
            randomizer: a name in ``shuffle_plugins.mechanisms.registry``; or a class that derives from
                ``PrivateSum``, a ``functools.partial`` of it, or a function that builds one.
            sampling: ``"without-replacement"`` (the default), ``"poisson"``, or for local randomizers
                ``"epoch"``: a fresh secret order of all records in each iteration, cut into batches, which
                costs one round of everybody, before its first release.
            clipping: ``"flat"``, one ball for a sample's whole gradient; ``"per_layer"``, a ball for every
                parameter's part of it, at the same ε; or ``"adaptive"`` or an :class:`AdaptiveClipping`,
                where ``max_grad_norm`` is the first radius, and what sets privacy also pays for the noisy
                number of unclipped gradients that moves it.
            batch_first: whether the batch is the first dimension of the module's input.
            loss_reduction: ``"mean"`` or ``"sum"``, as the loss reduces over the batch.
            on_nonfinite: ``"zero"`` counts a gradient with NaN or infinite entries as zeros. ``"raise"``
                refuses the step, to look for the cause, and tells, which no ε covers.
            randomness: coins of sampler and randomizer. ``SeededRandomness`` makes a run repeatable and voids
                its privacy.
            target_epsilon: optional budget; the step that would exceed it raises ``PrivacyBudgetExceeded``.

        Raises:
            ShufflePrivacyError: if the configuration is one whose ε would be wrong.
        """
        return self._make_private(_settings("make_private", locals(), opacus_own))

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        max_grad_norm: float | Sequence[float],
        epochs: int | None = None,
        num_steps: int | None = None,
        randomizer: Randomizer = DEFAULT_RANDOMIZER,
        sampling: SamplingName | None = None,
        clipping: str | AdaptiveClipping = "flat",
        batch_first: bool = True,
        loss_reduction: str = "mean",
        grad_sample_mode: GradSampleMode = "hooks",
        wrap_model: bool = True,
        on_nonfinite: Literal["zero", "raise"] = "zero",
        randomness: Randomness | None = None,
        **opacus_own: Unpack[OpacusArguments],
    ) -> PrivateObjects:
        """As :meth:`make_private`, with the largest ε0, up to 20, whose run stays within (ε, δ).

        Multi-message sums get the least noise multiplier instead. Either is solved for the exact n, k, number
        of steps, randomizer and accountant, on top of what is recorded already. Read it from
        ``optimizer.local_epsilon`` or ``optimizer.noise_multiplier``. Refused if nothing meets the target.

        Args:
            target_epsilon, target_delta: of everything recorded at the end of training (replace-one). The
                step that would exceed it raises ``PrivacyBudgetExceeded``.
            epochs: passes over the returned loader, n // k steps each. Give this or ``num_steps``.
        """
        return self._make_private(_settings("make_private_with_epsilon", locals(), opacus_own))

    def _make_private(self, given: SimpleNamespace) -> PrivateObjects:
        accountant = self._require_accountant()
        population, cohort = self._population_and_cohort(given, accountant)
        num_steps = None
        if hasattr(given, "epochs"):
            privacy, num_steps = _solved(given, population=population, cohort=cohort, accountant=accountant)
        else:
            privacy = {name: getattr(given, name) for name in ("local_epsilon", "noise_multiplier")}
        target_epsilon, target_delta = given.target_epsilon, given.target_delta
        distributed = isinstance(
            given.module, (DifferentiallyPrivateDistributedDataParallel, DistributedDataParallel)
        )
        coins = secure(given.randomness)
        draws = _common_randomness(coins) if distributed else coins
        optimizer = given.optimizer
        private_optimizer = (DistributedShuffleDPOptimizer if distributed else ShuffleDPOptimizer)(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            randomizer=given.randomizer,
            max_grad_norm=given.max_grad_norm,
            clipping=given.clipping,
            population=population,
            cohort=cohort,
            sampling=given.sampling,
            loss_reduction=given.loss_reduction,
            on_nonfinite=given.on_nonfinite,
            randomness=coins,
            **privacy,
        )
        accountant.core_type(method=accountant.method).step(private_optimizer.round)  # or it is refused now
        hook = accountant.get_optimizer_hook_fn(
            sample_rate=cohort / population, target_epsilon=target_epsilon, target_delta=target_delta
        )
        if target_epsilon is not None and target_delta is not None:
            target = PrivacyTarget(epsilon=float(target_epsilon), delta=float(target_delta))
            _refuse_spent_delta(private_optimizer.round, accountant=accountant, target=target)
            if num_steps is not None:  # asked for the whole run at once, so that no step has to
                accountant.core.would_exceed(
                    private_optimizer.round,
                    num_steps=rounds_in(
                        num_steps, population=population, cohort=cohort, sampling=given.sampling
                    ),
                    target_epsilon=target.epsilon,
                    delta=target.delta,
                )
        private_optimizer.attach_step_hook(hook)
        private_optimizer.attach_step_hook(StepLog(num_steps=num_steps))
        sampler = SAMPLERS[given.sampling](
            population=population,
            cohort=cohort,
            randomness=draws,
            rank=torch.distributed.get_rank() if distributed else 0,
            world_size=torch.distributed.get_world_size() if distributed else 1,
        )
        sampler.attach(private_optimizer)
        private_loader = with_sampler(given.data_loader, sampler, batch_first=given.batch_first)
        try:
            private_module = self._prepare_model(
                given.module,
                batch_first=given.batch_first,
                loss_reduction=given.loss_reduction,
                grad_sample_mode=given.grad_sample_mode,
                wrap_model=given.wrap_model,
            )
        except UnsupportedModuleError as error:
            error.add_note(
                "Call model.train() before make_private if the model is in evaluation mode. Layers such as "
                "BatchNorm are replaced by model = opacus.validators.ModuleValidator.fix(model): make the "
                "optimizer after it"
            )
            raise
        refuse_evaluation_mode(private_module, given.module)
        private_optimizer.watch(given.module, accountant=accountant)
        dataset = given.data_loader.dataset
        if self.dataset is not None and self.dataset is not dataset:
            warn_caller(f"{_TWO_DATA_SETS}. Use one engine per data set unless they are the same people")
            self._doubt(_TWO_DATA_SETS)
        self.dataset = dataset
        self._in_use = True
        if isinstance(coins, SeededRandomness):
            self._doubt(
                "SeededRandomness was used: whoever knows or guesses the seed can undo the noise, and no ε "
                "below protects anybody"
            )
        self.data_loader = private_loader
        self._optimizers += (private_optimizer,)
        self._training_plan = TrainingPlan.of(
            private_optimizer,
            accountant=accountant,
            num_steps=num_steps,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
        )
        self._training_plan.announce()
        return private_module, private_optimizer, private_loader

    def _population_and_cohort(
        self, given: SimpleNamespace, accountant: SubsampledShuffleAccountant
    ) -> tuple[int, int]:
        """n and k, after checks of the objects."""
        modes = GradSampleMode.__args__  # type: ignore[attr-defined]
        if given.grad_sample_mode not in modes:
            raise ShufflePrivacyError(
                f"grad_sample_mode {given.grad_sample_mode!r} does not give every sample's whole gradient, "
                f"which the randomizer needs: use one of {modes}, and BatchMemoryManager to save memory"
            )
        if isinstance(given.module, (FSDPModule, FullyShardedDataParallel)):
            raise ShufflePrivacyError("sharded modules (FSDP) split a sample's gradient: use DDP")
        secure(given.randomness)
        if self.secure_mode and isinstance(given.randomness, SeededRandomness):
            raise ShufflePrivacyError("secure_mode forbids SeededRandomness: leave randomness out")
        own = set(given.module.parameters())
        if any(p not in own for group in given.optimizer.param_groups for p in group["params"]):
            raise ShufflePrivacyError("the optimizer holds parameters that are not the module's")
        listener = getattr(getattr(given.data_loader, "batch_sampler", None), "listener", None)
        for other in {BOOKS[p] for p in (*own, *getattr(listener, "params", ())) if p in BOOKS}:
            if not begins_with(accountant.core, other.core):
                raise ShufflePrivacyError(
                    f"{len(other)} rounds on this model or loader are recorded in another engine's "
                    "accountant, and this engine's ε would leave them out: use that engine, or assign "
                    "engine.accountant = other_engine.accountant before make_private. An engine for each "
                    "round of federated learning gets the same accountant in each. If the rounds were on "
                    "data of other people, load the weights into a new model, and give it a new loader"
                )
        return population_and_cohort(given.data_loader)

    def get_epsilon_interval(self, delta: float, *, level: float | None = None) -> EpsilonInterval:
        """Certified upper bound on ε at δ in (0, 1), and ε of a real randomizer below it.

        ``level`` is for the records that had that ε0 in every round, if each has its own; else it is of those
        who lose most.
        """
        accountant = self._require_accountant()
        if level is None:
            return accountant.get_epsilon_interval(delta)
        return accountant.spent.of_group(level).epsilon(checked(checks.delta, delta))

    def statement(
        self,
        *,
        delta: float | None = None,
        unit: Unit = Unit.RECORD,
        accesses: Sequence[DataAccess] = (),
    ) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the rounds recorded so far; ``print`` it.

        Args:
            unit: what a sample of the data set stands for; ``"user"`` if each is all data of one person.
            accesses: what else your script computes from the data, and whether ε covers it.
        """
        accountant, plan = self._require_accountant(), self._training_plan
        doubts = [*self._doubts, *accountant.warnings]
        if passed_over := sum(each.batches_without_step for each in self._optimizers):
            doubts.append(
                f"batches that were delivered and no step taken on them: {passed_over:,}. In iterations that "
                "train they are in ε like the others, but which ones they were can be seen from the model: "
                "if that depended on the data, as in `if not isfinite(loss): continue`, no ε covers it"
            )
        return PrivacyStatement.of(
            accountant.spent,
            delta=self.training_plan.delta if delta is None else delta,
            subject="training with the Opacus engine of opacus_shuffle",
            unit=unit,
            trust=(
                "whoever runs this process sees every record and is trusted with all of them, and to release "
                "nothing but what the rounds release",
                "no shuffler runs, and none is trusted: the released sums do not depend on the order of "
                "their terms, and show no more than shuffled reports would",
                f"every row of the data set is taken for one {unit}: rows that repeat one are seen only "
                "where a Subset or ConcatDataset of torch makes them",
            ),
            clipping=(
                self._optimizers[-1].clipping_described
                if self._optimizers
                else "unknown: this engine has made no optimizer private"
            ),
            accesses=accesses,
            warnings=doubts,
            target_epsilon=None if plan is None else plan.target_epsilon,
            target_delta=None if plan is None else plan.delta,
            senders_known=False,
            packages=("torch", "opacus"),
        )

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str] | BinaryIO | IO[bytes],
        module: nn.Module,
        torch_load_kwargs: dict[str, Any] | None = None,
        **objects: Any,
    ) -> dict[str, Any]:
        """Opacus's ``load_checkpoint``, which loads the history first, or refuses it and loads nothing.

        The weights of a checkpoint that this run is past already are loaded, and its later rounds stay in ε.
        It warns if the run goes on with other rounds than it was saved with, or without the target that it
        had. As in Opacus, the file is unpickled, so load only files that you trust.
        """
        start = path.tell() if hasattr(path, "tell") else None
        checkpoint = torch.load(path, **{**(torch_load_kwargs or {}), "weights_only": False})
        if start is not None:
            path.seek(start)  # type: ignore[union-attr]
        self._require_accountant().load_state_dict(
            checkpoint.get("privacy_accountant_state_dict", {}),
            next_round=self._optimizers[-1].round if self._optimizers else None,
        )
        loaded: dict[str, Any] = super().load_checkpoint(
            path=path, module=module, torch_load_kwargs=torch_load_kwargs, **objects
        )
        return loaded

    def _doubt(self, text: str) -> None:
        """Have every privacy statement from here on say so."""
        if text not in self._doubts:
            self._doubts = (*self._doubts, text)


def _chosen_sampling(sampling: str | None, poisson_sampling: bool | None) -> Sampling:
    """How batches are drawn, from ``sampling``, from Opacus's ``poisson_sampling``, or from both."""
    if None not in (sampling, poisson_sampling) and poisson_sampling != (sampling == "poisson"):
        raise ShufflePrivacyError(
            f"sampling={sampling!r} and poisson_sampling={poisson_sampling} contradict each other: "
            "give one of them"
        )
    return checked_sampling(sampling or ("poisson" if poisson_sampling else "without-replacement"))


def _common_randomness(own: Randomness) -> Randomness:
    """One stream that all processes read alike, for the common cohort; refused if two toss the same coins.

    Process 0's key, which all are sent: whoever reads the processes' traffic reads raw data anyway.
    """
    keys = [0] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(keys, seed_from(own))
    if len(set(keys)) != len(keys):
        raise ShufflePrivacyError(
            "processes share a stream of coins, so their reports would not be independent: give each process "
            "a SeededRandomness of its own seed (or leave randomness out)"
        )
    return SeededRandomness(keys[0])


# ---- a run before its first step ------------------------------------------------------------------------


def _settings(method: str, arguments: Mapping[str, Any], opacus_own: Mapping[str, Any]) -> SimpleNamespace:
    """A method's arguments; it refuses unknown ones, and two that contradict each other."""
    for name in opacus_own.keys() - OpacusArguments.__annotations__.keys():
        hint = ": the noise that meets the target is found" if name == "noise_multiplier" else ""
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")
    if opacus_own.get("noise_generator") is not None:
        raise ShufflePrivacyError(
            "noise_generator is not used, since coins come from a cryptographic generator: leave it out, "
            "or repeat a run with randomness=SeededRandomness(seed) of shuffle_plugins.randomness"
        )
    if opacus_own.get("rand_on_empty", False) is not False:
        raise ShufflePrivacyError(
            "rand_on_empty=True puts an invented record into an empty Poisson batch, and a round's "
            "records must be the data set's: leave it out. An empty round releases noise alone"
        )
    adaptive = {each.name: opacus_own.get(each.name) for each in fields(AdaptiveClipping)}
    return SimpleNamespace(
        **dict(arguments)
        | {
            "clipping": clipping_of(arguments["clipping"], **adaptive),
            "sampling": _chosen_sampling(arguments["sampling"], opacus_own.get("poisson_sampling")),
        }
    )


def _solved(
    given: SimpleNamespace, *, population: int, cohort: int, accountant: SubsampledShuffleAccountant
) -> tuple[dict[str, float | None], int]:
    """The privacy number, by its name, that keeps to the target, and the number of steps."""
    if (given.epochs is None) == (given.num_steps is None):
        raise ShufflePrivacyError(
            "give exactly one of epochs and num_steps, of the whole run, such as epochs=10"
        )
    if given.epochs is None:
        steps = checked(checks.whole, "num_steps", given.num_steps)
    else:
        steps = checked(checks.whole, "epochs", given.epochs) * (population // cohort)
    target = PrivacyTarget(
        epsilon=positive("target_epsilon", given.target_epsilon),
        delta=checked(checks.delta, given.target_delta, name="target_delta"),
        num_steps=rounds_in(steps, population=population, cohort=cohort, sampling=given.sampling),
    )
    trained = [p for group in given.optimizer.param_groups for p in group["params"] if p.requires_grad]
    sizes = [p.numel() for p in trained]
    setting = SumSetting.of(given.randomizer, given.clipping, given.max_grad_norm, sizes=sizes, cohort=cohort)
    draw = {"population": population, "cohort": cohort, "sampling": given.sampling}
    privacy = _Run(setting=setting, accountant=accountant, draw={**draw, "dim": sum(sizes)}, target=target)
    found = privacy.solved()
    _logger.info(
        "%s=%.6g for epsilon=%g at delta=%g (replace-one), n=%d, k=%d, %d steps",
        setting.privacy_parameter, found, target.epsilon, target.delta, population, cohort, steps,
    )  # fmt: skip
    return {setting.privacy_parameter: found}, steps


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A training run whose privacy number is to be found, on top of the rounds that are recorded already."""

    setting: SumSetting  # of any privacy number
    accountant: SubsampledShuffleAccountant
    draw: dict[str, Any]  # of SumSetting.build
    target: PrivacyTarget  # its steps are rounds, as the accountant counts them: an epoch is one

    def solved(self) -> float:
        """The least noise multiplier, or the largest ε0, that keeps to the target; refused if none does."""
        noise, target = self.setting.takes_noise_multiplier, self.target
        if noise:
            lowest, highest, precision = 2.0**-14, 1 / 0.25, 1e-3  # less noise has no finite ε
        else:
            lowest, highest, precision = LEAST_SEARCHED_LOCAL_EPSILON, LARGEST_SEARCHED_LOCAL_EPSILON, 1e-4
            _refuse_spent_delta(self._sum_at(1.0).round, accountant=self.accountant, target=target)

        @functools.cache
        def spent(level: float) -> float:
            new_round = self._sum_at(1 / level if noise else level).round
            try:
                whole = self.accountant.core.and_rounds(new_round, num_steps=target.num_steps)
                return whole.epsilon(target.delta, lower=False).upper
            except ArithmeticError:  # hardly any noise
                return math.inf

        rest, found = target.epsilon - self._spent_before(), None
        if rest > 0:
            found = largest_within(
                spent,
                target=target.epsilon,
                start=self._guess(rest),
                lowest=lowest,
                highest=highest,
                precision=precision,
            )
        if found is None:
            what = "the recorded rounds leave no room" if len(self.accountant) else "nothing keeps all rounds"
            raise ShufflePrivacyError(
                f"{what} within ε={target.epsilon} at δ={target.delta}: raise the target, take fewer steps "
                "or smaller batches of a larger data set, or use a smaller local_delta"
            )
        privacy, at_end = 1 / found if noise else found, found >= highest * (1 - 1e-3)
        limited = noise or at_end or self._sum_at(found).mechanism.local_delta > 0
        if limited and spent(found) < 0.97 * target.epsilon:
            self._warn_of_rest(privacy, spent=spent(found), at_end=at_end)
        return privacy

    def _sum_at(self, privacy: float) -> RoundSum:
        ball = self.setting.ball
        if ball.adaptive is not None:  # the cost is the same whatever the noise of the bits, checked later
            ball = replace(ball, adaptive=replace(ball.adaptive, unclipped_num_std=None))
        return replace(self.setting, privacy=privacy, ball=ball).build(**self.draw)

    def _guess(self, rest: float) -> float:
        """Where the search begins, if so much of the target is left."""
        if not self.setting.takes_noise_multiplier:
            like = {name: value for name, value in self.draw.items() if name != "dim"}
            return normal_guess(replace(self.target, epsilon=rest), ShuffleRound(local_epsilon=1.0, **like))
        # All sums as one Gaussian sum of everybody, scaled by γ√T.
        ratio = noise_ratio(local_epsilon=rest, local_delta=self.target.delta)
        rate = self.draw["cohort"] / self.draw["population"]
        return float(1 / (2 * ratio * rate * math.sqrt(self.target.num_steps)))

    def _spent_before(self) -> float:
        if not len(self.accountant):
            return 0.0
        spent = self.accountant.get_epsilon(self.target.delta)
        warn_caller(
            f"{len(self.accountant)} rounds are recorded already, with ε={rounded(spent, up=True)} at "
            f"δ={self.target.delta}: the new rounds get what is left of ε={self.target.epsilon}"
        )
        return spent

    def _warn_of_rest(self, privacy: float, *, spent: float, at_end: bool) -> None:
        """Say that the run leaves a part of its target unused, since the search stopped at a limit."""
        target, noise = self.target, self.setting.takes_noise_multiplier
        remedy = "Take more steps or a larger batch_size to use more of it, or a smaller target"
        if not noise and not at_end:
            most = target.delta / (2 * self.draw["cohort"] * target.num_steps)
            remedy = (
                f"Choose a δ0 far below δ / (2 · reports · steps) = {most:.2g}, as in randomizer="
                f"functools.partial(Gaussian, local_delta={most / 1000:.0e}), or reports without one, such "
                "as blanket-mixed-gaussian"
            )
        warn_caller(
            f"target_epsilon={target.epsilon:g} is not used up: with {self.setting.privacy_parameter}="
            f"{rounded(privacy, up=noise)}, the {'least' if noise else 'largest'} that "
            f"{'is tried' if at_end else 'keeps to it'}, all {target.num_steps} steps together spend "
            f"ε={rounded(spent, up=True)} at δ={target.delta:g}. {remedy}"
        )


def _local_delta_told(amplified: float, last: float, *, delta: float) -> str:
    """What it means that so many rounds are amplified, and so many have an ε at all."""
    return (
        f"each report has a local_delta of its own, and those of all reports add up: at delta={delta:g} "
        f"shuffling amplifies at most {amplified:,} rounds, and from round {last + 1:,} on no epsilon can be "
        "certified. Use a local_delta far below delta / (2 * reports of the whole run), such as randomizer="
        "functools.partial(Gaussian, local_delta=1e-15), fewer steps, or a randomizer without one, such as "
        "'privunit'"
    )


def _refuse_spent_delta(
    new_round: Round, *, accountant: SubsampledShuffleAccountant, target: PrivacyTarget
) -> None:
    """Refuse a run whose reports' own δ0 leave it no ε at all."""
    amplified, last = accountant.core.rounds_left(new_round, delta=target.delta)
    if target.num_steps > last:
        raise ShufflePrivacyError(_local_delta_told(amplified, last, delta=target.delta))


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is known of a run before its first step; ``print`` it."""

    randomizer: str  # its name, and the number that sets its privacy
    max_grad_norm: float
    population: int
    cohort: int
    sampling: str
    num_steps: int  # of one epoch, n // k, where the call did not say how many there will be
    whole_run: bool  # whether those are all
    delta: float  # the target's, or the smaller of 1e-5 and 1/n where there is no target
    target_epsilon: float | None
    expected_noise: ExpectedNoise  # of one step's mean gradient
    _next_round: Round = field(repr=False)
    _history: ShuffleAccountant = field(repr=False)

    @classmethod
    def of(
        cls,
        optimizer: ShuffleMixin,
        *,
        accountant: SubsampledShuffleAccountant,
        num_steps: int | None,
        target_epsilon: float | None,
        target_delta: float | None,
    ) -> TrainingPlan:
        """The plan of an optimizer that is about to train, after the rounds that are recorded by now."""
        mechanism, next_round = optimizer.mechanism, optimizer.round
        population, cohort = optimizer.population, optimizer.cohort
        parameter = mechanism.privacy_parameter
        value = rounded(getattr(optimizer, parameter), up=parameter == "noise_multiplier")
        noise = replace(expected_noise(mechanism, cohort=cohort), dim=optimizer.num_parameters)
        if len(levels := optimizer.levels) > 1:
            value = f"{levels[0]:g} to {value}, in {len(levels)} levels"
            noise = replace(noise, noise=math.sqrt(optimizer.worst_variance) / cohort)
        return cls(
            randomizer=f"{mechanism.name} with {parameter}={value}",
            max_grad_norm=optimizer.max_grad_norm,
            population=population,
            cohort=cohort,
            sampling=str(next_round.sampling),
            num_steps=max(1, population // cohort) if num_steps is None else num_steps,
            whole_run=num_steps is not None,
            delta=min(1e-5, 1 / population) if target_delta is None else float(target_delta),
            target_epsilon=target_epsilon,
            expected_noise=noise,
            _next_round=next_round,
            _history=copy.deepcopy(accountant.spent),
        )

    @property
    def _num_rounds(self) -> int:
        sampling = self._next_round.sampling
        return rounds_in(self.num_steps, population=self.population, cohort=self.cohort, sampling=sampling)

    @functools.cached_property
    def epsilon(self) -> float:
        """Certified ε at ``delta`` after ``num_steps`` steps and all rounds before; inf if none is."""
        try:
            whole = self._history.and_rounds(self._next_round, num_steps=self._num_rounds)
            return whole.epsilon(self.delta, lower=False).upper
        except ArithmeticError:
            return math.inf

    def warning(self) -> str | None:
        """What is wrong with the noise, and what would help; None if it leaves something to learn from."""
        return self.expected_noise.warning(num_steps=self.num_steps if self.whole_run else None)

    def delta_warning(self) -> str | None:
        """After how many rounds the δ0 of all reports have used up ``delta``; None without δ0, or enough."""
        amplified, last = self._history.rounds_left(self._next_round, delta=self.delta)
        if amplified == math.inf or (self.whole_run and self._num_rounds <= amplified):
            return None
        return _local_delta_told(amplified, last, delta=self.delta)

    def announce(self) -> None:
        """Log the plan at level INFO; warn of noise that leaves hardly anything to learn, of δ0, or of δ."""
        if _logger.isEnabledFor(logging.INFO):
            _logger.info("%s", self)
        of_delta = delta_warning(self.delta, population=self.population)
        for message in filter(None, (self.warning(), self.delta_warning(), of_delta)):
            warn_caller(message)

    def __str__(self) -> str:
        noise = self.expected_noise
        steps = f"{self.num_steps:,} step{'s' if self.num_steps > 1 else ''}"
        length = steps if self.whole_run else f"one epoch ({steps})"
        used = ""
        if self.target_epsilon is not None:
            used = f", {self.epsilon / self.target_epsilon:.0%} of the target {self.target_epsilon:g}"
        each, over = noise.signal_to_noise_ratio, noise.signal_to_noise_ratio_over(self.num_steps)
        return "\n".join(
            (
                f"{self.randomizer}, max_grad_norm={self.max_grad_norm:g}, {noise.dim:,} parameters",
                f"batches: {self.cohort:,} of {self.population:,} samples, {self.sampling}",
                f"privacy: epsilon={rounded(self.epsilon, up=True)} at delta={self.delta:g} (replace-one) "
                f"after {length}{used}",
                f"signal-to-noise ratio of the mean gradient: at most {rounded(each, up=True, digits=3)} in "
                f"a step, {rounded(over, up=True, digits=3)} over {length}",
            )
        )
