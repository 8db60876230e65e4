"""Opacus's ``PrivacyEngine`` for the subsampled shuffle model."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, MutableMapping, Sequence, Sized
from dataclasses import dataclass, fields
from typing import IO, Any, BinaryIO, Literal, Self, TypedDict, Unpack

import opacus
import torch
from opacus.accountants import IAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.weak import WeakTensorKeyDictionary

from opacus_shuffle.accountants import StepLog, SubsampledShuffleAccountant, begins_with
from opacus_shuffle.errors import ShufflePrivacyError, checked, warn_caller
from opacus_shuffle.loaders import SAMPLERS, population_and_cohort, rounds_in, seed_from, with_sampler
from opacus_shuffle.optimizer import DistributedShuffleDPOptimizer, ShuffleDPOptimizer, ShuffleMixin
from opacus_shuffle.runs import Run, TrainingPlan, refuse_spent_delta
from opacus_shuffle.sums import (
    DEFAULT_RANDOMIZER,
    AdaptiveClipping,
    ClippedBall,
    Randomizer,
    SumBuilder,
    SumSetting,
    clipping_of,
    positive,
)
from shuffle_plugins.accounting import DataAccess, EpsilonInterval, PrivacyStatement, Sampling, Unit
from shuffle_plugins.core import checks
from shuffle_plugins.planning import TrainingRecipe, training_recipe
from shuffle_plugins.planning.recipes import ModelKind
from shuffle_plugins.randomness import Randomness, SeededRandomness, secure

_logger = logging.getLogger(__name__)

GradSampleMode = Literal["hooks", "functorch", "ew", "no_op"]
SamplingName = Literal["without-replacement", "poisson", "epoch"]
PrivateObjects = tuple[Any, ShuffleDPOptimizer | DistributedShuffleDPOptimizer, DataLoader[Any]]

# Where rounds on a parameter are recorded. A parameter may outlive the engine that trained it.
_books: MutableMapping[Tensor, SubsampledShuffleAccountant] = WeakTensorKeyDictionary()

# What a privacy statement says of this host.
_TRUST = (
    "whoever runs this process sees every record and is trusted with all of them, and to release nothing but "
    "what the rounds release",
    "no shuffler runs, and none is trusted: the released sums do not depend on the order of their terms, and "
    "show no more than shuffled reports would",
)
_TWO_DATA_SETS = (
    "this engine has accounted for another data set before: its ε composes both, as if every person were "
    "in each"
)
_ROWS = (
    "every row of the data set is taken for one {unit}: rows that repeat one are seen only where a Subset or "
    "ConcatDataset of torch makes them"
)
_RESUMED = (
    "rounds were taken over from a checkpoint; how their gradients were clipped, whether their coins were "
    "seeded, and whether batches were passed over, is not known here"
)
_PASSED_OVER = (
    "{count:,} batch{es} delivered and no step taken on {them}. In iterations that train they are in ε like "
    "the others, but which ones they were can be seen from the model: if that depended on the data, as in "
    "`if not isfinite(loss): continue`, no ε below covers it"
)
_SEEDED = (
    "SeededRandomness was used: whoever knows or guesses the seed can undo the noise, and no ε below "
    "protects anybody"
)


class OpacusArguments(TypedDict, total=False):
    """What scripts for Opacus may pass to ``make_private`` beside the options that mean more here.

    Attributes:
        poisson_sampling: True is ``sampling="poisson"``; False is ``"without-replacement"``, or ``"epoch"``
            if ``sampling`` says so.
        criterion: not used.
        noise_generator: must stay None; ``randomness`` takes its place.
        rand_on_empty: must stay False; an empty Poisson round is of no records, not of invented ones.
        target_unclipped_quantile: with ``clipping="adaptive"``, as of :class:`AdaptiveClipping`; so are the
            four that follow.
    """

    poisson_sampling: bool | None
    criterion: nn.Module | None
    noise_generator: None
    rand_on_empty: bool
    target_unclipped_quantile: float | None
    clipbound_learning_rate: float | None
    min_clipbound: float | None
    max_clipbound: float | None
    unclipped_num_std: float | None


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What both ways to make an optimizer private have in common, checked; see ``make_private``."""

    module: nn.Module
    optimizer: Optimizer
    data_loader: DataLoader[Any]
    max_grad_norm: float | Sequence[float]
    randomizer: Randomizer
    sampling: Sampling
    clipping: str | AdaptiveClipping
    batch_first: bool
    loss_reduction: str
    grad_sample_mode: GradSampleMode
    wrap_model: bool
    on_nonfinite: str
    randomness: Randomness | None

    @classmethod
    def of(cls, method: str, arguments: Mapping[str, Any], opacus_own: Mapping[str, Any]) -> Self:
        """From all arguments of a method; it refuses unknown ones, and two that contradict each other."""
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
        given = {each.name: arguments[each.name] for each in fields(cls)} | {
            "clipping": clipping_of(arguments["clipping"], **adaptive),
            "sampling": _chosen_sampling(arguments["sampling"], opacus_own.get("poisson_sampling")),
        }
        return cls(**given)

    @property
    def distributed(self) -> bool:
        """Whether the model is trained over several processes."""
        return isinstance(
            self.module, (DifferentiallyPrivateDistributedDataParallel, DistributedDataParallel)
        )

    def population_and_cohort(
        self, *, secure_mode: bool, accountant: SubsampledShuffleAccountant
    ) -> tuple[int, int]:
        """n and k, after checks of the objects."""
        modes = GradSampleMode.__args__  # type: ignore[attr-defined]
        if self.grad_sample_mode not in modes:
            raise ShufflePrivacyError(
                f"grad_sample_mode {self.grad_sample_mode!r} does not give every sample's whole gradient, "
                f"which the randomizer needs: use one of {modes}, and BatchMemoryManager to save memory"
            )
        if isinstance(self.module, (FSDPModule, FullyShardedDataParallel)):
            raise ShufflePrivacyError("sharded modules (FSDP) split a sample's gradient: use DDP")
        secure(self.randomness)
        if secure_mode and isinstance(self.randomness, SeededRandomness):
            raise ShufflePrivacyError("secure_mode forbids SeededRandomness: leave randomness out")
        own = set(self.module.parameters())
        if any(p not in own for group in self.optimizer.param_groups for p in group["params"]):
            raise ShufflePrivacyError("the optimizer holds parameters that are not the module's")
        listener = getattr(getattr(self.data_loader, "batch_sampler", None), "listener", None)
        for other in {_books[p] for p in (*own, *getattr(listener, "params", ())) if p in _books}:
            if not begins_with(accountant.core, other.core):
                raise ShufflePrivacyError(
                    f"{len(other)} rounds on this model or loader are recorded in another engine's "
                    "accountant, and this engine's ε would leave them out: use that engine, or assign "
                    "engine.accountant = other_engine.accountant before make_private. An engine for each "
                    "round of federated learning gets the same accountant in each. If the rounds were on "
                    "data of other people, load the weights into a new model, and give it a new loader"
                )
        return population_and_cohort(self.data_loader)


class PrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """Trains under the subsampled shuffle model; use it in place of ``opacus.PrivacyEngine``.

    Every sample's gradient is clipped and randomised, by itself with ε0 or by the noise of a multi-message
    sum, and only the sum over a randomly drawn cohort is released. ε is for replace-one neighbours at
    fixed n, against an observer of the model.

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

        Args:
            accountant: ``"subsampled_shuffle_pld"`` (tight), ``"subsampled_shuffle_rdp"`` (fast), or for
                comparison ``"girgis-2021"``, Theorem 1 of that paper as published.
            secure_mode: coins and sampling come from a cryptographic generator either way; True also refuses
                a seeded ``randomness``.
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
        """What the run will cost, how much of its target that is, and how noisy its steps will be; print it.

        As it was when the last call made an optimizer private.
        """
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
        length and nothing else, so this costs no privacy (docs/guides/opacus.md, "Without tuning").

        Args:
            module: the model. If one ``nn.Linear`` holds all parameters to train, the recipe is that of a
                linear classifier, whose rows must have length one; otherwise that of a network.
            dataset: the training set.
            target_epsilon, target_delta: of the whole run (replace-one).
            randomizer: for one report per record, a registered randomizer of vectors in an ℓ2 ball, or
                ``"best"`` for the best of them; or ``"vector-sum"``.
            batch_size, num_steps: to choose them yourself.
        """
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise ShufflePrivacyError(
                "a recipe needs the number of records: use a map-style data set with a length"
            )
        trained = [p for p in module.parameters() if p.requires_grad]
        wanted = {id(p) for p in trained}
        linear = any(
            isinstance(part, nn.Linear) and wanted <= {id(p) for p in part.parameters()}
            for part in module.modules()
        )
        return training_recipe(
            target_epsilon=target_epsilon,
            delta=checked(checks.delta, target_delta, name="target_delta"),
            population=len(dataset),
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
        local_epsilon: float | None = None,
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
            optimizer: any torch optimizer over (some of) the module's parameters.
            data_loader: map-style data set, ``batch_size=k``, plain or shuffled order; the whole data set and
                the same one in every process. Of an Opacus ``DPDataLoader`` k is ``sample_rate`` times n,
                rounded; ``sampling`` says how batches are drawn here too.
            local_epsilon: ε0 of one sample's gradient in one step, in nats, spent once over all parameters.
                For local randomizers.
            noise_multiplier: for multi-message sums, ``"vector-sum"`` and ``"multi-message"``: standard
                deviation, over ``max_grad_norm``, of Gaussian noise in each coordinate of the sum that would
                give about the same privacy. As in Opacus, except that a record is replaced and not left out,
                which moves the sum by up to twice ``max_grad_norm``. The noise of ``"vector-sum"`` has this
                deviation; ``"multi-message"`` has more noise and sends fewer bits.
            max_grad_norm: radius of the randomizer's norm ball: ℓ2 for ``"privunit"``, ``"vector-sum"`` and
                ``"multi-message"``, ℓ∞ for ``"linf-coordinate"``. Gradients outside are clipped to it. With
                ``clipping="per_layer"`` a list, one radius for each trainable parameter in the optimizer's
                order.
            randomizer: name of a local randomizer or a multi-message sum in
                ``shuffle_plugins.mechanisms.registry``; or a class that derives from ``PrivateSum``, such as
                ``PrivUnit`` or ``VectorSum``, a ``functools.partial`` of it with further options, or a
                function that builds one.
            sampling: how batches are drawn: ``"without-replacement"`` (the default), ``"poisson"``, or
                ``"epoch"``, which is ``DataLoader(shuffle=True, drop_last=True)``: a fresh secret order of
                all records in each iteration, cut into batches. An epoch costs one round of everybody, before
                its first release; for local randomizers.
            clipping: ``"flat"``, one ball for a sample's whole gradient; ``"per_layer"``, a ball for every
                parameter's part of it, at the same ε, with the noise of a ball that holds all parts
                together; or ``"adaptive"``, where ``max_grad_norm`` is the first radius and moves after every
                round (Andrew et al. 2021), or an :class:`AdaptiveClipping`, which says how it moves. A part
                of ``local_epsilon``, or of the sum's noise, then pays for the noisy number of unclipped
                gradients; ε is that of ``local_epsilon`` (for every randomizer's worst case) or of
                ``noise_multiplier``.
            batch_first: whether the batch is the first dimension of the module's input.
            loss_reduction: ``"mean"`` or ``"sum"``, as the loss reduces over the batch.
            grad_sample_mode: how Opacus computes per-sample gradients; under ``"no_op"`` your code sets every
                parameter's ``grad_sample``. Ghost modes never materialise them and are refused.
            wrap_model: as in Opacus; False attaches hooks to ``module`` and returns them.
            on_nonfinite: what becomes of a sample's gradient with NaN or infinite entries. ``"zero"`` counts
                it as zeros, which depends on that sample alone. ``"raise"`` refuses the step, for those who
                look for the cause: the refusal tells that there is such a sample, and no ε covers that.
            randomness: coins of sampler and randomizer. ``SeededRandomness`` makes a run repeatable and voids
                its privacy.
            target_epsilon: optional budget; the step that would exceed it raises ``PrivacyBudgetExceeded``.
            target_delta: δ of the budget.
            opacus_own: what else scripts for Opacus pass, see :class:`OpacusArguments`.

        Returns:
            (module, optimizer, data_loader), as Opacus does.

        Raises:
            TypeError: for any other keyword argument, or one that does not go with the randomizer.
            ShufflePrivacyError: if the configuration is one whose ε would be wrong.
        """
        return self._make_private(
            _Settings.of("make_private", locals(), opacus_own),
            {"local_epsilon": local_epsilon, "noise_multiplier": noise_multiplier},
            num_steps=None,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
        )

    def _make_private(
        self,
        settings: _Settings,
        privacy: dict[str, float | None],
        *,
        num_steps: int | None,
        target_epsilon: float | None,
        target_delta: float | None,
    ) -> PrivateObjects:
        accountant = self._require_accountant()
        population, cohort = settings.population_and_cohort(
            secure_mode=self.secure_mode, accountant=accountant
        )
        distributed, optimizer = settings.distributed, settings.optimizer
        draws = coins = secure(settings.randomness)
        if distributed:
            draws = _common_randomness(coins)
            _require_distinct_streams(coins)
        optimizer_class = DistributedShuffleDPOptimizer if distributed else ShuffleDPOptimizer
        private_optimizer = optimizer_class(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            randomizer=settings.randomizer,
            max_grad_norm=settings.max_grad_norm,
            clipping=settings.clipping,
            population=population,
            cohort=cohort,
            sampling=settings.sampling,
            loss_reduction=settings.loss_reduction,
            on_nonfinite=settings.on_nonfinite,
            randomness=coins,
            **privacy,
        )
        accountant.core_type(method=accountant.method).step(private_optimizer.round)  # or it is refused now
        if target_epsilon is not None and target_delta is not None:
            refuse_spent_delta(
                private_optimizer.round, accountant=accountant, num_steps=1, target_delta=target_delta
            )
        private_optimizer.attach_step_hook(
            accountant.get_optimizer_hook_fn(
                sample_rate=cohort / population, target_epsilon=target_epsilon, target_delta=target_delta
            )
        )
        private_optimizer.attach_step_hook(StepLog(num_steps=num_steps))
        sampler = SAMPLERS[settings.sampling](
            population=population,
            cohort=cohort,
            randomness=draws,
            rank=torch.distributed.get_rank() if distributed else 0,
            world_size=torch.distributed.get_world_size() if distributed else 1,
        )
        sampler.attach(private_optimizer)
        private_loader = with_sampler(settings.data_loader, sampler, batch_first=settings.batch_first)
        private_module = self._prepare_model(
            settings.module,
            batch_first=settings.batch_first,
            loss_reduction=settings.loss_reduction,
            grad_sample_mode=settings.grad_sample_mode,
            wrap_model=settings.wrap_model,
        )
        private_optimizer.watch(settings.module)
        private_optimizer.book_in(accountant, module=settings.module)
        dataset = settings.data_loader.dataset
        if self.dataset is not None and self.dataset is not dataset:
            warn_caller(f"{_TWO_DATA_SETS}. Use one engine per data set unless they are the same people")
            self._doubt(_TWO_DATA_SETS)
        self.dataset = dataset
        self._in_use = True
        for p in private_optimizer.params:
            _books[p] = accountant
        if isinstance(coins, SeededRandomness):
            self._doubt(_SEEDED)
        self._optimizers += (private_optimizer,)
        self._training_plan = TrainingPlan.of(
            private_optimizer,
            accountant=accountant,
            population=population,
            cohort=cohort,
            num_steps=num_steps,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
        )
        self._training_plan.announce()
        return private_module, private_optimizer, private_loader

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

        Multi-message sums get the least noise multiplier instead. Either is solved for the
        exact n, k, number of steps, randomizer and accountant, on top of what the accountant has recorded
        already. Read it from ``optimizer.local_epsilon`` or ``optimizer.noise_multiplier``. The step that
        would exceed the budget raises ``PrivacyBudgetExceeded``.

        Args:
            target_epsilon: ε of everything recorded at the end of training (replace-one).
            target_delta: its δ, in (0, 1).
            epochs: passes over the returned loader, n // k steps each. Give this or ``num_steps``.
            num_steps: number of optimizer steps.
            module, optimizer, data_loader, max_grad_norm, randomizer, sampling, clipping, batch_first: as of
                :meth:`make_private`, like all that follow.
            loss_reduction, grad_sample_mode, wrap_model, on_nonfinite, randomness, opacus_own: likewise.

        Returns:
            (module, optimizer, data_loader).

        Raises:
            ShufflePrivacyError: as :meth:`make_private`; also if nothing meets the target.
        """
        settings = _Settings.of("make_private_with_epsilon", locals(), opacus_own)
        accountant = self._require_accountant()
        population, cohort = settings.population_and_cohort(
            secure_mode=self.secure_mode, accountant=accountant
        )
        if (epochs is None) == (num_steps is None):
            raise ShufflePrivacyError("give exactly one of epochs and num_steps")
        if epochs is None:
            steps = checked(checks.whole, "num_steps", num_steps)
        else:
            steps = checked(checks.whole, "epochs", epochs) * (population // cohort)
        target_epsilon = positive("target_epsilon", target_epsilon)
        target_delta = checked(checks.delta, target_delta, name="target_delta")
        builder, sampling_law = SumBuilder.of(randomizer), settings.sampling
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        dim = sum(p.numel() for p in trained)
        ball = ClippedBall.of(
            settings.clipping,
            max_grad_norm,
            parameters=len(trained),
            norm=lambda: builder.norm(dim=dim, cohort=cohort),
        )
        privacy = Run(
            setting=SumSetting(builder=builder, privacy=1.0, ball=ball),
            accountant=accountant,
            dim=dim,
            population=population,
            cohort=cohort,
            sampling=sampling_law,
            num_rounds=rounds_in(steps, population=population, cohort=cohort, sampling=sampling_law),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
        ).privacy()
        _logger.info(
            "%s=%.6g for epsilon=%g at delta=%g (replace-one), n=%d, k=%d, %d steps",
            builder.privacy_parameter, privacy, target_epsilon, target_delta, population, cohort, steps,
        )  # fmt: skip
        return self._make_private(
            settings,
            {builder.privacy_parameter: privacy},
            num_steps=steps,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
        )

    def get_epsilon(self, delta: float) -> float:
        """Certified upper bound on ε at δ in (0, 1) for everything recorded so far (replace-one)."""
        return self._require_accountant().get_epsilon(delta)

    def get_epsilon_interval(self, delta: float) -> EpsilonInterval:
        """Certified upper bound on ε at δ in (0, 1), and ε of a real randomizer below it."""
        return self._require_accountant().get_epsilon_interval(delta)

    def statement(
        self,
        *,
        delta: float | None = None,
        unit: Unit = Unit.RECORD,
        accesses: Sequence[DataAccess] = (),
    ) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the rounds recorded so far; ``print`` it.

        Args:
            delta: δ in (0, 1); by default that of the training plan.
            unit: what a sample of the data set stands for; ``"user"`` if each is all data of one person.
            accesses: what else your script computes from the data, and whether ε covers it. Without them the
                statement says that this is unknown.
        """
        accountant, plan = self._require_accountant(), self._training_plan
        passed_over = sum(each.batches_without_step for each in self._optimizers)
        return PrivacyStatement.of(
            accountant.core,
            delta=self.training_plan.delta if delta is None else delta,
            subject="training with the Opacus engine of opacus_shuffle",
            unit=unit,
            trust=(*_TRUST, _ROWS.format(unit=unit)),
            clipping=(
                self._optimizers[-1].clipping_described
                if self._optimizers
                else "unknown: this engine has made no optimizer private"
            ),
            accesses=accesses,
            warnings=(
                *self._doubts,
                *accountant.warnings,
                *([_passed_over(passed_over)] if passed_over else []),
            ),
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
        """Opacus's ``load_checkpoint``, except that a history it cannot continue is refused before it loads.

        Warns if the run goes on with other rounds than it was saved with (another noise, randomizer or
        cohort), or without the target that it had: ε is right, but such a change is seldom meant. As there,
        the file is unpickled, so load only files that you trust.

        Raises:
            ShufflePrivacyError: as ``accountant.load_state_dict``. Module, optimizer and history are then as
                before.
        """
        start = path.tell() if hasattr(path, "tell") else None
        checkpoint = torch.load(path, **{**(torch_load_kwargs or {}), "weights_only": False})
        if start is not None:
            path.seek(start)  # type: ignore[union-attr]
        accountant, state = self._require_accountant(), checkpoint.get("privacy_accountant_state_dict", {})
        accountant.continued(state)
        changes = accountant.changes(
            state, next_round=self._optimizers[-1].round if self._optimizers else None
        )
        if changes:
            warn_caller(
                f"this run does not go on as the checkpoint's did: {'; and '.join(changes)}. ε counts both "
                "rightly. To resume, call what made the first engine private with the same arguments (epochs "
                "or num_steps of the whole run), in a new engine, and load then"
            )
        loaded: dict[str, Any] = super().load_checkpoint(
            path=path, module=module, torch_load_kwargs=torch_load_kwargs, **objects
        )
        self._doubt(_RESUMED)
        return loaded

    def _doubt(self, text: str) -> None:
        """Have every privacy statement from here on say so."""
        if text not in self._doubts:
            self._doubts = (*self._doubts, text)


def _passed_over(count: int) -> str:
    es, them = (" was", "it") if count == 1 else ("es were", "them")
    return _PASSED_OVER.format(count=count, es=es, them=them)


def _chosen_sampling(sampling: str | None, poisson_sampling: bool | None) -> Sampling:
    """How batches are drawn, from ``sampling``, from Opacus's ``poisson_sampling``, or from both."""
    if poisson_sampling is not None and not isinstance(poisson_sampling, bool):
        raise ShufflePrivacyError(f"poisson_sampling must be True or False, got {poisson_sampling!r}")
    if None not in (sampling, poisson_sampling) and poisson_sampling != (sampling == "poisson"):
        raise ShufflePrivacyError(
            f"sampling={sampling!r} and poisson_sampling={poisson_sampling} contradict each other: "
            "give one of them"
        )
    chosen = sampling or ("poisson" if poisson_sampling else "without-replacement")
    if chosen not in list(SAMPLERS):
        raise ShufflePrivacyError(f"sampling must be one of {[s.value for s in SAMPLERS]}, got {sampling!r}")
    return Sampling(chosen)


def _common_randomness(randomness: Randomness) -> Randomness:
    """One stream that all processes read alike, for drawing the common cohort.

    Process 0 draws its key and sends it to the others. A key of 310 bits from a cryptographic generator is as
    good as a cryptographic generator's own; whoever reads the processes' traffic reads raw data anyway.
    """
    key = [seed_from(randomness)]
    torch.distributed.broadcast_object_list(key, src=0)
    return SeededRandomness(key[0])


def _require_distinct_streams(randomness: Randomness) -> None:
    """Refuse, on all processes, two that would toss the same coins for their samples."""
    drawn = randomness.integers(1 << 62, (1,), device="cpu").item()
    everyone: list[int | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, drawn)
    if len(set(everyone)) != len(everyone):
        raise ShufflePrivacyError(
            "processes share a stream of coins, so their reports would not be independent: give each process "
            "a SeededRandomness of its own seed (or leave randomness out)"
        )
