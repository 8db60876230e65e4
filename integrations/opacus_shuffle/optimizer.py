"""The optimizer that clips, randomises every sample's whole gradient once, and averages."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override

from opacus_shuffle.accountants import (
    OPTIMIZERS,
    AccountingHook,
    CohortMismatch,
    ShufflePrivacyError,
    SubsampledShuffleAccountant,
    checked,
    refuse_other_accountants,
    warn_caller,
)
from opacus_shuffle.loaders import CohortSampler, Delivery, checked_sampling
from opacus_shuffle.sums import (
    NO_LOCAL_EPSILON,
    NO_NOISE_MULTIPLIER,
    AdaptiveClipping,
    ClippedBall,
    Randomizer,
    RoundSum,
    SumSetting,
    positive,
    record_levels,
    sums_by_level,
)
from shuffle_plugins.accounting import LabelledRound, Round, Sampling, ShuffleRound
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.randomness import Randomness, secure

# Where rounds on a parameter are recorded. A parameter may outlive the engine that trained it.
BOOKS: MutableMapping[Tensor, SubsampledShuffleAccountant] = WeakTensorKeyDictionary()


def _refuse_raw_steps(stepping: Optimizer, _arguments: object, _keywords: object) -> None:
    """Called by torch before every optimizer's step: only private steps move what is trained privately."""
    moved = [p for group in stepping.param_groups for p in group["params"]]
    owners = [owner for owner in OPTIMIZERS if owner.owns(moved)]
    if owners and not any(owner._stepping for owner in owners):
        raise ShufflePrivacyError(
            f"this {type(stepping).__name__} would move parameters of a model that is trained privately by "
            "gradients that are not, and no ε would count it: call step() of the optimizer that make_private "
            "returned, and give that one every parameter that you train. Train on public data before "
            "make_private, or in a new model with these weights"
        )


register_optimizer_step_pre_hook(_refuse_raw_steps)


@dataclass
class RoundUnderWay:
    """One draw of the sampler, from the delivery of its first physical batch on."""

    batch: Delivery  # delivered last
    number: int  # of the draw, or of the epoch: it is recorded once
    fresh: bool = True  # no step was taken on that batch
    refused: bool = False  # one of its steps: those on its other batches do nothing
    taken: int = 0  # physical batches whose reports are in the total
    received: int = 0  # reports in it
    total: Tensor | None = None

    def end(self, *, refused: bool) -> None:
        """Drop what was taken in, after its release or a refusal."""
        self.taken, self.received, self.total, self.refused = 0, 0, None, refused


class ShuffleMixin:
    """Replaces a :class:`DPOptimizer`'s clip-and-noise by clip-and-randomise; mix in before it.

    Every sample's gradient over *all* trainable parameters is one vector, on which a local randomizer spends
    ε0 once; the sum of the randomised vectors, which does not depend on order, is the shuffle.

    A step is taken on a batch that a :class:`~opacus_shuffle.CohortLoader` has just delivered, once, and on
    no other. Batches that are passed over, or whose step is refused, are recorded with the others once an
    iteration trains the model: whether a step is taken may depend on the data, and how many batches are
    delivered does not. Left out are the last batch of an iteration if it was only looked at, and a step that
    the accountant itself refuses, such as one over the budget. Where the budget has no room for a batch that
    was passed over, the next delivery is refused.
    """

    # What the base optimizer brings.
    params: list[Any]
    grad_samples: list[Tensor]
    original_optimizer: Optimizer
    _is_last_step_skipped: bool

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        randomizer: Randomizer,
        local_epsilon: float | Sequence[float] | Tensor | None = None,
        noise_multiplier: float | None = None,
        max_grad_norm: float | Sequence[float],
        clipping: str | AdaptiveClipping = "flat",
        population: int,
        cohort: int,
        sampling: Sampling | str = Sampling.WITHOUT_REPLACEMENT,
        loss_reduction: str = "mean",
        on_nonfinite: str = "zero",
        randomness: Randomness | None = None,
    ) -> None:
        """Wrap the optimizer that takes the randomised average; the rest is as of ``make_private``.

        ``population`` and ``cohort`` (n and k) are those of all processes together, which must not share a
        stream of ``randomness``.
        """
        sampling = checked_sampling(sampling)
        population = checked(checks.whole, "population", population)
        cohort = checked(checks.whole, "cohort", cohort)
        if on_nonfinite not in ("zero", "raise"):
            raise ShufflePrivacyError(f"on_nonfinite must be 'zero' or 'raise', got {on_nonfinite!r}")
        if isinstance(optimizer, DPOptimizer):
            raise ShufflePrivacyError("the optimizer is private already; pass its original_optimizer")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ShufflePrivacyError(
                "LBFGS asks for several gradients of one batch in a step, and a round is one: use SGD or Adam"
            )
        self.original_optimizer = optimizer
        if not self.params:
            raise ShufflePrivacyError("the optimizer holds no trainable parameter: nothing would be private")
        self._own = tuple(self.params)
        self._population, self._cohort = population, cohort
        self._sampling = sampling
        self._randomness = secure(randomness)
        self._watched: MixedRecords | None = None
        self._others: tuple[nn.Parameter, ...] = ()
        self._hooks: tuple[Callable[[Any], None], ...] = ()
        self._under_way: RoundUnderWay | None = None
        self._unrecorded: dict[int, Round] = {}  # by number, rounds that this iteration has delivered
        self._trained = False  # in this iteration, before the batch delivered last, or by a step
        self._delivered = self._released = 0
        self._skipped = 0  # batches in a row that the model was trained on, and no step tried; -1: warned
        self._on_nonfinite = on_nonfinite
        self._parameters_seen: int | None = None  # the last iteration that began with finite ones
        self._forward_watch = ForwardWatch()
        self._paid: dict[int, tuple[int, Round]] = {}  # by hook: the last round that it recorded
        self._stepping = False
        self._accountant: object = None  # of the engine that made this optimizer, if one did
        sizes = [p.numel() for p in self._own]
        chosen = SumSetting.of(randomizer, clipping, max_grad_norm, sizes=sizes, cohort=cohort)
        self._levels: NDArray[np.float64] | None = None  # ε0 of every record, if each has its own
        if np.ndim(local_epsilon):  # type: ignore[arg-type]
            self._levels = record_levels(
                local_epsilon, population=population, sampling=sampling, clipping=clipping
            )
            local_epsilon = float(self._levels.max())
        one = cast("float | None", local_epsilon)
        self._build(chosen.with_privacy(local_epsilon=one, noise_multiplier=noise_multiplier))
        super().__init__(
            optimizer,
            noise_multiplier=None,  # type: ignore[call-arg]
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=cohort / self._num_processes(),
            loss_reduction=loss_reduction,
        )
        OPTIMIZERS.add(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a copy would record in a copy of the accountant. Torch's attempt also breaks all others."""
        raise ShufflePrivacyError(
            "a shuffle optimizer cannot be copied or pickled, nor can the loader and the engine that it "
            "belongs to: its copy would record rounds where this engine does not see them. Save "
            "optimizer.state_dict(), or use engine.save_checkpoint; for a second run call make_private again"
        )

    # ---- configuration, read afresh at every step -------------------------------------------------------

    def _build(self, chosen: SumSetting) -> None:
        if self._under_way is not None and self._under_way.received:
            raise ShufflePrivacyError(
                "the randomizer cannot change inside a round: its reports must all come from one randomizer. "
                "Change it after step() has released the round"
            )
        draw: dict[str, Any] = {
            "dim": self.num_parameters,
            "population": self.population,
            "cohort": self.cohort,
            "sampling": self._sampling,
        }
        if self._levels is None:
            self._sums = {chosen.privacy: chosen.build(**draw)}
            self._round = self._sum.round
        else:
            if chosen.privacy != self._levels.max():
                raise ShufflePrivacyError("local_epsilon is each record's own: it cannot be set")
            self._sums = sums_by_level(self._levels, chosen, **draw)
            self._round = LabelledRound.of([cast(ShuffleRound, each.round) for each in self._sums.values()])
        self._setting = chosen

    @property
    def _sum(self) -> RoundSum:
        """What happens to every row; of several levels the sum of the least ε0, the noisiest."""
        return next(iter(self._sums.values()))

    @property
    def local_epsilon(self) -> float:
        """ε0 of one sample's gradient in one step, in nats; assign to change it from the next round on.

        The largest, if each record has its own, which cannot be changed.
        """
        if self._setting.takes_noise_multiplier:
            raise AttributeError(NO_LOCAL_EPSILON)
        return float(self._setting.privacy)

    @local_epsilon.setter
    def local_epsilon(self, value: float) -> None:
        if self._setting.takes_noise_multiplier:
            raise AttributeError(NO_LOCAL_EPSILON)
        self._build(replace(self._setting, privacy=value))

    @property
    def max_grad_norm(self) -> float:
        """Radius of the norm ball; assign to change it from the next round on.

        Under per-layer clipping of the ball that all layers make up: all ``max_grad_norms`` are scaled alike.
        """
        return float(self._setting.ball.radius)

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        ball = self._setting.ball
        if value != ball.radius:
            self._build(replace(self._setting, ball=ball.scaled(value)))

    @property
    def max_grad_norms(self) -> tuple[float, ...]:
        """Under per-layer clipping the radius of every parameter's ball; assign to change them."""
        limits = self._setting.ball.limits
        if limits is None:
            raise AttributeError("clipping is flat: there is max_grad_norm; or use clipping='per_layer'")
        return limits

    @max_grad_norms.setter
    def max_grad_norms(self, values: Sequence[float]) -> None:
        norm = self._setting.ball.norm
        changed = ClippedBall.of_layers(values, parameters=len(self.max_grad_norms), norm=norm)
        self._build(replace(self._setting, ball=changed))

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of a multi-message sum; assign to change it from the next round on."""
        if not self._setting.takes_noise_multiplier:
            raise AttributeError(NO_NOISE_MULTIPLIER)
        return float(self._setting.privacy)

    @noise_multiplier.setter
    def noise_multiplier(self, value: float | None) -> None:
        if value is None:  # Opacus's constructor assigns it
            return
        if not self._setting.takes_noise_multiplier:
            raise ShufflePrivacyError(NO_NOISE_MULTIPLIER)
        self._build(replace(self._setting, privacy=value))

    @property
    def effective_noise_multiplier(self) -> float:
        """Worst root mean square error of the released sum per coordinate, over ``max_grad_norm``, to log.

        The noise is not Gaussian, and must not be accounted as if it were.
        """
        return math.sqrt(self.worst_variance / self.mechanism.dim) / self.max_grad_norm

    @property
    def worst_variance(self) -> float:
        """Bound on E‖error‖² of a round's released sum, over all data."""
        each = ((part.mechanism, part.round.cohort) for part in self._sums.values())
        return math.fsum(m.worst_variance * (1 if m.must_be_summed else cohort) for m, cohort in each)

    @property
    def levels(self) -> tuple[float, ...]:
        """The ε0 that records have, the least first; of one setting for all its ε0, or noise multiplier."""
        return tuple(self._sums)

    @property
    def num_parameters(self) -> int:
        """Length of a sample's whole gradient, over all trainable parameters."""
        return sum(p.numel() for p in self._own)

    @property
    def sample_rate(self) -> float:
        """k / n of the loader: the share of the data set that a step draws."""
        return self.cohort / self.population

    @property
    def mechanism(self) -> PrivateSum:
        """What randomises and adds up the gradients at present."""
        return self._sum.mechanism

    @property
    def clipping_described(self) -> str:
        """How a sample's gradient is clipped at present, in words."""
        norm, ball, moves = self.mechanism.norm, self._setting.ball, ""
        how = f"as a whole to the {norm} ball"
        if ball.limits is not None:
            how = f"each parameter's part by itself, to {norm} balls that lie in one"
        if ball.adaptive is not None:
            moves = ", which moves with a private number of unclipped gradients that the rounds pay for"
        return (
            f"every sample's gradient over all {self.num_parameters:,} trained parameters is clipped, {how} "
            f"of radius {self.max_grad_norm:.6g}{moves}"
        )

    @property
    def delivered(self) -> Delivery:
        """The physical batch that was handed out last."""
        if self._under_way is None:
            raise ShufflePrivacyError(
                "no batch was delivered: train on the loader that make_private returned"
            )
        return self._under_way.batch

    @property
    def batches_without_step(self) -> int:
        """Batches that were delivered so far and not released, for whatever reason."""
        return self._delivered - self._released

    @property
    def round(self) -> Round:
        """What the next step reveals, as accounted for (replace-one, against an observer of the model)."""
        return self._round

    # ---- hooks ------------------------------------------------------------------------------------------

    def attach_step_hook(self, fn: Callable[[Any], None]) -> None:
        """Add a hook that runs before each release. Hooks add up: a second one disconnects no accountant."""
        refuse_other_accountants(fn)
        self._hooks = (*self._hooks, fn)

    @property
    def _accounting(self) -> list[AccountingHook]:
        return [hook for hook in self._hooks if isinstance(hook, AccountingHook)]

    @property
    def step_hook(self) -> None:
        """None: Opacus would run it after ``p.grad`` is written, and hooks run before."""

    @step_hook.setter
    def step_hook(self, value: object) -> None:
        if value is not None:  # Opacus's constructor assigns None
            raise ShufflePrivacyError(
                "step_hook cannot be replaced, since rounds are recorded by hooks: add one with "
                "attach_step_hook"
            )

    def _record(self, hook: AccountingHook, number: int, new_round: Round) -> None:
        """Have it record a round, once: an epoch before its first release, which pays for the rest of it."""
        if not self._is_paid(hook, number):
            hook(self, new_round)
            self._paid[id(hook)] = (number, new_round)

    def _is_paid(self, hook: AccountingHook, number: int) -> bool:
        return self._paid.get(id(hook), (None,))[0] == number

    @property
    def _has_trained(self) -> bool:
        """Whether the model was trained in this iteration, with or without a step."""
        return self._trained or self._forward_watch.trained

    def record_passed_over(self, *, but: int = 0) -> None:
        """Record the batches that were delivered and not stepped on, once the model is trained on one.

        Each as it was to be charged when it was delivered. A batch that a budget refuses stays to be
        recorded. The last ``but`` batches are left out.
        """
        while self._has_trained and len(self._unrecorded) > but:
            number, new_round = next(iter(self._unrecorded.items()))
            for hook in self._accounting:
                self._record(hook, number, new_round)
            del self._unrecorded[number]

    @property
    def outstanding(self) -> list[tuple[AccountingHook, Round]]:
        """What will be recorded when the next iteration begins, if no step comes before it."""
        count = len(self._unrecorded) - self._only_looked_at if self._has_trained else 0
        return [
            (hook, new_round)
            for number, new_round in list(self._unrecorded.items())[:count]
            for hook in self._accounting
            if not self._is_paid(hook, number)
        ]

    @property
    def _only_looked_at(self) -> bool:
        """Whether the last batch was delivered, and the model not trained on it."""
        last = self._under_way
        return last is not None and last.fresh and last.batch.part == 0 and not self._forward_watch.trained

    def watch(self, module: nn.Module, *, accountant: SubsampledShuffleAccountant | None = None) -> None:
        """Look after the whole model: training on earlier batches is noticed, and layers that mix records.

        With the accountant of an engine, an optimizer of any of the parameters that records elsewhere steps
        no more: each accountant would lack the other's rounds.
        """
        module.register_forward_pre_hook(self._forward_watch, with_kwargs=True)
        self._watched = MixedRecords(module)
        own = set(self._own)
        self._others = tuple(p for p in module.parameters() if p.requires_grad and p not in own)
        if accountant is not None:
            self._accountant = accountant
            for p in module.parameters():
                if p.requires_grad or p in BOOKS:
                    BOOKS[p] = accountant

    @property
    def population(self) -> int:
        """Records that batches are drawn from."""
        return self._population

    @property
    def cohort(self) -> int:
        """Records of a batch; expected, under Poisson sampling."""
        return self._cohort

    def owns(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether one is trained here, or has a gradient and is in the watched model, to which it may have
        been added since.
        """
        if not {*self._own, *self._others}.isdisjoint(parameters):
            return True
        with_gradient = {p for p in parameters if p.grad is not None}
        model = () if self._watched is None else self._watched.module.parameters()
        return not with_gradient.isdisjoint(model)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As Opacus's; also drops the per-sample gradients of a watched module."""
        super().zero_grad(set_to_none)  # type: ignore[misc]
        for p in self._others:
            p.grad_sample = None  # type: ignore[attr-defined]

    # ---- one step ---------------------------------------------------------------------------------------

    def clip_and_accumulate(self) -> None:
        """Clip and randomise each sample's gradient once over all parameters, and add them up."""
        params = self.params
        under_way = self._check_batch()
        self._check_parameters(params)
        sizes = [p.numel() for p in params]
        dtype = torch.float32
        for p in params:
            dtype = torch.promote_types(dtype, p.dtype)
        grad_samples = self.grad_samples
        if len({len(g) for g in grad_samples}) > 1:
            raise CohortMismatch(
                "parameters have gradients of different numbers of records: if the batch is the second "
                "dimension of the model's input, pass batch_first=False to make_private"
            )
        parts = [g.reshape(len(g), size).to(dtype) for g, size in zip(grad_samples, sizes, strict=True)]
        ball = self._setting.ball
        rows = Rows(parts if ball.limits is None else ball.clip(parts))
        expected = under_way.batch.rows
        if rows.num_rows != expected:  # two views of a record, or records twice, cost more than is recorded
            raise CohortMismatch(
                f"the step processed {rows.num_rows} gradients, its batch has {expected} records: every "
                "record gives one gradient. Average several views of a record inside the model or the loss, "
                "keep every row of the batch, flatten no other dimension into the batch's, and pass "
                "batch_first=False to make_private if the batch is the second dimension of the input"
            )
        if self._on_nonfinite == "raise" and not rows.is_finite():
            raise ShufflePrivacyError(
                "a record's gradient is NaN or infinite; nothing was released. Mend the record or the loss, "
                "or leave on_nonfinite out: such a gradient then counts as zero. To skip the batch instead "
                "would tell that it holds such a record"
            )
        share = self._sum_of(under_way.batch).share(rows, randomness=self._randomness)
        under_way.total = share if under_way.total is None else under_way.total + share
        under_way.received += rows.num_rows
        under_way.taken += 1

    def _sum_of(self, batch: Delivery) -> RoundSum:
        """What randomises a physical batch: all its records have one level."""
        if self._levels is None or not batch.rows:
            return self._sum
        if batch.level not in self._sums:
            raise ShufflePrivacyError(
                "each record has a local_epsilon of its own, and a batch that holds several cannot be told "
                "apart: train on the loader that make_private returned, or announce batches of one level, "
                "expect_batch(Delivery(rows=..., level=...))"
            )
        return self._sums[batch.level]

    def _check_parameters(self, params: list[nn.Parameter]) -> None:
        """A parameter that left the randomised vector would be updated with its raw gradient."""
        if len(params) != len(self._own) or any(p is not q for p, q in zip(params, self._own, strict=True)):
            raise ShufflePrivacyError(
                "the trainable parameters are not those that the randomizer was built for: call make_private "
                "again after adding, freezing or unfreezing parameters"
            )
        for p in params:
            grad_sample = getattr(p, "grad_sample", None)
            if isinstance(grad_sample, list) and len(grad_sample) != 1:
                raise ShufflePrivacyError(
                    f"gradients of {len(grad_sample)} backward passes are in one step, and a round is one "
                    "draw: call step() and zero_grad() after every batch, and use BatchMemoryManager for "
                    "larger ones. Losses of one batch, such as those of a GAN's discriminator on real and on "
                    "generated rows, are added up before one backward()"
                )
            latest = grad_sample[0] if isinstance(grad_sample, list) else grad_sample
            if hasattr(latest, "_of_an_earlier_batch"):  # marked when the next one was delivered
                raise ShufflePrivacyError(
                    "the gradients are those of an earlier batch: for each batch call zero_grad(), "
                    "backward() and step() before the next one is delivered"
                )
            if grad_sample is None:
                raise ShufflePrivacyError(
                    f"a trainable parameter of shape {tuple(p.shape)} has no per-sample gradient. Freeze "
                    "parameters that the loss does not use (requires_grad=False, before make_private); run "
                    "evaluation under torch.no_grad() and module.eval(); call backward() before step(); "
                    "switch activation (gradient) checkpointing off: Opacus does not see repeated passes"
                )

    def add_noise(self) -> None:
        """Check the round, have the hooks record it, and move the sum to ``summed_grad`` and ``p.grad``."""
        if not self._accounting:
            raise ShufflePrivacyError(
                "no shuffle accountant is attached, so the step's cost would go unrecorded: call "
                "optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=k / n))"
            )
        books = {BOOKS.get(p) for p in (*self._own, *self._others)}
        if self._accountant is not None and books != {self._accountant}:
            raise ShufflePrivacyError(
                "another engine has made this model private since, and neither engine's ε would have all "
                "rounds: go on with what it returned. To use both, assign engine.accountant = "
                "other_engine.accountant before the second make_private"
            )
        under_way = self._under_way
        if under_way is None or under_way.total is None or under_way.taken != under_way.batch.parts:
            raise ShufflePrivacyError("the round was not taken in as a whole: call backward() and step()")
        received = self._count_received(under_way)
        if self._sampling is not Sampling.POISSON and received != self.cohort:
            raise CohortMismatch(
                f"the step processed {received} gradients, its cohort is {self.cohort}: train on the loader "
                "that make_private returned (or one with batch_sampler=FixedSizeSampler(...)), every batch "
                "whole"
            )
        self._trained = True
        try:
            self.record_passed_over(but=1)  # this batch, which the hooks record themselves
            for accounting in self._accounting:
                self._record(accounting, under_way.number, self.round)
                if self._paid[id(accounting)][1] != self.round:
                    raise ShufflePrivacyError(
                        "the randomizer changed within an epoch, which is accounted for as one round of "
                        "one randomizer. Change it after the last step of an epoch, or begin a new iteration "
                        "over the loader, which is a new epoch"
                    )
        finally:  # what an accountant refuses does not depend on the data, and would be refused again
            self._unrecorded.pop(under_way.number, None)
        for hook in self._hooks:
            if not isinstance(hook, AccountingHook):
                hook(self)
        self._released += 1
        params = self.params
        estimate = self._estimate(under_way.total, own=under_way.received, received=received)
        sizes = [p.numel() for p in params]
        adaptive, next_radius = self._setting.ball.adaptive, None
        if adaptive is not None:
            estimate, difference = estimate[:-1], self._sum_of_processes(estimate[-1])
            if received:  # of an empty Poisson round nothing is learned
                next_radius = adaptive.moved(self.max_grad_norm, unclipped=(1 + difference / received) / 2)
        for p, part in zip(params, torch.split(estimate, sizes), strict=True):
            p.summed_grad = part.view(p.shape).to(device=p.device, dtype=p.dtype)
            p.grad = p.summed_grad.clone()
        under_way.end(refused=False)
        if next_radius is not None:
            self.max_grad_norm = next_radius

    def _estimate(self, total: Tensor, *, own: int, received: int) -> Tensor:
        """This process's part of the released sum, with the clients' common noise."""
        return self._sum.estimate(self._with_common_noise(total), reports=received)

    def _with_common_noise(self, total: Tensor) -> Tensor:
        common = self.mechanism.common_noise(randomness=self._randomness)
        return total if common is None else total + common

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Take one physical batch in; after a round's last one ``p.grad`` is set, and the result is True."""
        under_way = self._under_way
        on_a_batch = under_way is not None and under_way.fresh
        if under_way is not None and on_a_batch and under_way.refused:
            under_way.fresh = False
            self._clear_gradients()
            return False
        try:
            self._check_parameters(self.params)
            return bool(super().pre_step(closure))  # type: ignore[misc]
        except BaseException:
            if under_way is not None:
                # So that the batch is recorded: why it is refused may be in the data.
                self._trained |= on_a_batch
                under_way.fresh = False
                under_way.end(refused=under_way.refused or on_a_batch)
            self._clear_gradients()
            raise

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """As Opacus's. While it lasts, and at no other time, an optimizer may move the trained parameters."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        own = set(self._own)
        for group in self.original_optimizer.param_groups:
            for p in group["params"]:
                if p not in own:
                    p.grad = None  # torch would move it by what it got before it was frozen
        self._stepping = True
        try:
            return super().step()  # type: ignore[misc]
        finally:
            self._stepping = False

    def _check_batch(self) -> RoundUnderWay:
        """The round under way, if a step may be taken on its last batch; else refuse, and say why not."""
        under_way = self._under_way
        if under_way is None or not under_way.fresh:
            raise ShufflePrivacyError(
                "train on the loader that make_private returned, not your own, and take one step on each of "
                "its batches before the next one is delivered: this batch was not drawn by the sampler that "
                "the accounting is for, or a step was taken on it already. In Lightning pass "
                "callbacks=[LightningCallback(engine)] to the Trainer; without the engine call "
                "sampler.attach(optimizer) and train on CohortLoader(dataset, batch_sampler=sampler)"
            )
        under_way.fresh = False
        if self._forward_watch.stale:
            raise ShufflePrivacyError(
                "since this batch was delivered the model was trained on tensors of an earlier one, whose "
                "records were drawn for another step: train on each batch when it is delivered, and look at "
                "earlier ones under torch.no_grad() only"
            )
        if self._watched is not None and (mixing := self._watched.found()) is not None:
            raise ShufflePrivacyError(
                f"{mixing} carries statistics of the batch from one record to the others, and past the "
                "rounds: call model = opacus.validators.ModuleValidator.fix(model), which makes GroupNorm of "
                "BatchNorm, and make the optimizer after it; or call eval() on the layer after model.train()"
            )
        batch, taken = under_way.batch, under_way.taken
        if batch.iteration != self._parameters_seen:  # once an iteration, so that it costs nothing
            self._parameters_seen = batch.iteration
            if not all(bool(p.isfinite().all()) for p in self._own):
                raise ShufflePrivacyError(
                    "a parameter is NaN or infinite: training has diverged, and further steps would be spent "
                    "on nothing. Begin anew with a lower learning rate"
                )
        if taken != batch.part:
            raise CohortMismatch(
                f"of the {batch.part} physical batches before this one {taken} were stepped on, and a round "
                "of some of its records is not what the accounting is for: call step() on every physical "
                "batch that is delivered. This round is dropped; the next one may go on"
            )
        return under_way

    def _check_skip_next_step(self, pop_next: bool = True) -> bool:
        """Whether the last delivered batch is a physical batch of a round that goes on after it."""
        return self._under_way is not None and not self._under_way.batch.last

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refuse: a round is one batch of the loader, which says itself where physical batches end."""
        raise ShufflePrivacyError(
            "steps cannot be skipped by hand, since gradients of several draws would meet in one round: use "
            "opacus.utils.batch_memory_manager.BatchMemoryManager with the loader that make_private returned"
        )

    def _clear_gradients(self) -> None:
        self._is_last_step_skipped = False
        for p in self._own:
            p.summed_grad = None
            p.grad_sample = None
            p.grad = None

    # ---- checkpoints ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The original optimizer's state, the rounds recorded, and a ``max_grad_norm`` that moves."""
        histories = [dict(hook.accountant.state_dict()) for hook in self._accounting]
        state = {**super().state_dict(), "privacy_accountants": histories}  # type: ignore[misc]
        if self._setting.ball.adaptive is not None:
            state["max_grad_norm"] = self.max_grad_norm
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the original optimizer, the history, and a radius that moves, within its bounds.

        A history that lacks rounds which were recorded here, or by the run that was saved, is refused, and
        so is none, once rounds were recorded here. It warns if the run goes on with other rounds, or without
        its target.
        """
        adaptive = self._setting.ball.adaptive
        rest = dict(state_dict)
        histories = rest.pop("privacy_accountants", [])
        radius = rest.pop("max_grad_norm", None)
        if histories and len(histories) != len(self._accounting):
            raise ShufflePrivacyError(
                f"the state holds the rounds of {len(histories)} accountants, and {len(self._accounting)} "
                "are attached: attach as many as the saved optimizer had, and load then"
            )
        if not histories and any(hook.accountant.spent.num_steps for hook in self._accounting):
            raise ShufflePrivacyError(
                "rounds were recorded here, and the state holds no history: it was not saved by this run's "
                "optimizer. Load it before the first round"
            )
        for hook, history in zip(self._accounting, histories, strict=False):
            hook.accountant.load_state_dict(history, next_round=self.round)
        super().load_state_dict(rest)  # type: ignore[misc]
        if adaptive is not None and radius is not None:
            self.max_grad_norm = adaptive.held(positive("max_grad_norm", radius))

    # ---- batches ----------------------------------------------------------------------------------------

    def attach_sampler(self, sampler: CohortSampler) -> None:
        """From now on only batches of this sampler are taken; called by ``sampler.attach(optimizer)``."""
        drawn = (sampler.population, sampler.cohort, sampler.sampling, sampler.world_size)
        accounted = (self.population, self.cohort, self._sampling, self._num_processes())
        if drawn != accounted:
            raise ShufflePrivacyError(
                f"the sampler draws (population, cohort, sampling, processes) = {drawn}, the optimizer "
                f"accounts for {accounted}: give both the same"
            )
        sampler.levels = self._levels

    def begin_iteration(self) -> None:
        """Record what the last iteration passed over, and drop its gradients before the next cohort."""
        self.record_passed_over(but=int(self._only_looked_at))
        self._unrecorded, self._trained, self._forward_watch.trained = {}, False, False
        self._under_way = None
        self._clear_gradients()

    def expect_batch(self, delivery: Delivery, batch: object = None) -> None:
        """Take note of a batch that is handed out: the next step is on this one, and on no earlier one."""
        self._warn_of_skipped_batches()
        self._trained = self._has_trained  # of which what watches forgets the earlier batches
        if self._under_way is None or delivery.part == 0:
            self.record_passed_over()
            self._delivered += 1
            number = delivery.iteration if self._sampling is Sampling.EPOCH else self._delivered
            self._under_way = RoundUnderWay(delivery, number)
            self._unrecorded.setdefault(number, self.round)
        self._under_way.batch, self._under_way.fresh = delivery, True
        self._forward_watch.deliver(batch)
        if self._watched is not None:
            forget_forward_passes(self._watched.module)
            self._watched.deliver()
        for p in self._own:
            kept = getattr(p, "grad_sample", None)
            for gradients in [kept] if isinstance(kept, Tensor) else kept or []:
                gradients._of_an_earlier_batch = True  # type: ignore[union-attr]

    def _warn_of_skipped_batches(self) -> None:
        last = self._under_way
        if self._skipped < 0 or last is None:
            return
        self._skipped = self._skipped + 1 if last.fresh and self._forward_watch.trained else 0
        if self._skipped == 2:
            self._skipped = -1
            warn_caller(
                f"{self.batches_without_step} batches are charged and were not stepped on. If your loop "
                "skips losses that are not finite, take the guard out: such gradients count as zeros"
            )

    def _count_received(self, under_way: RoundUnderWay) -> int:
        return under_way.received

    def _sum_of_processes(self, number: Tensor) -> float:
        return float(number)

    @staticmethod
    def _num_processes() -> int:
        return 1


class ShuffleDPOptimizer(ShuffleMixin, DPOptimizer):  # type: ignore[misc]
    """Opacus's ``DPOptimizer`` with local randomisation and shuffling in place of Gaussian noise."""


class DistributedShuffleDPOptimizer(ShuffleMixin, DistributedDPOptimizer):  # type: ignore[misc]
    """The same over several processes: each randomises its part of one common cohort, the sums are reduced.

    Before a round is recorded they agree on its total size, and that none refuses it; if one does, all raise.
    """

    _agreed = False

    @staticmethod
    def _num_processes() -> int:
        return int(torch.distributed.get_world_size())

    @override
    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        self._agreed = False
        try:
            return super().pre_step(closure)
        except Exception:
            if not self._agreed:
                self._agree(refused=True)
            raise

    def _count_received(self, under_way: RoundUnderWay) -> int:
        votes = self._agree(refused=False)
        if any(vote[1] for vote in votes):
            raise ShufflePrivacyError("another process refused this round; its own error says why")
        if len({vote[2] for vote in votes}) > 1:
            raise ShufflePrivacyError(
                "the processes disagree on the round: give all of them the whole data set, and the same "
                "batch size, randomizer, local_epsilon and sampling; iterate over the loader and skip "
                "batches in all of them alike, and evaluate on a loader of its own"
            )
        return sum(vote[0] for vote in votes)

    def _estimate(self, total: Tensor, *, own: int, received: int) -> Tensor:
        if torch.distributed.get_rank() == 0:
            total = self._with_common_noise(total)
        if not self.mechanism.must_be_summed:
            return self._sum.estimate(total, reports=own)
        total = total.to(self.params[0].device)
        torch.distributed.all_reduce(total)
        # Every process has the whole sum; Opacus adds up what the processes have.
        return self._sum.estimate(total, reports=received) / self._num_processes()

    def _sum_of_processes(self, number: Tensor) -> float:
        own = number.detach().reshape(1).to(device=self.params[0].device, dtype=torch.float32)
        parts = [torch.empty_like(own) for _ in range(self._num_processes())]
        torch.distributed.all_gather(parts, own)
        return math.fsum(part.item() for part in parts)  # the same in every process, to the last bit

    def _agree(self, *, refused: bool) -> list[list[int]]:
        """Each process's (gradients received, refusal, checksum of its round and of the records drawn)."""
        now = self._under_way
        received, drawn = (0, None) if now is None else (now.received, now.batch.checksum)
        checksum = zlib.crc32(repr((self.round.state(), self.mechanism.radius, drawn)).encode())
        own = torch.tensor(
            [received, int(refused), checksum], dtype=torch.int64, device=self.params[0].device
        )
        votes = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(votes, own)
        self._agreed = True
        return [vote.tolist() for vote in votes]


# ---- what is noticed of a model that trains ---------------------------------------------------------------


class ForwardWatch:
    """A forward pre-hook that notices training since the last delivery: any, or on an earlier batch.

    ``trained`` decides which batches are charged, and a step is refused once ``stale`` is set.

    Tensors are told by their storage: slices and views are recognised, copies are not. Copies of this hook,
    as in a copied or unpickled model, check nothing.
    """

    def __init__(self, *, blind: bool = False) -> None:
        self.stale = self.trained = False
        self._blind = blind
        self._current: set[StorageWeakRef] = set()
        self._earlier: set[StorageWeakRef] = set()
        self._prune_at = 64
        # Not a decorator: to import this module would load torch's compiler, which takes up to a second. Here
        # it is loaded already, by the optimizer.
        self._untraced = torch.compiler.disable(self._check)  # type: ignore[no-untyped-call]

    def deliver(self, batch: object) -> None:
        """Take note of a batch that is handed out: a tensor, or a mapping, list or tuple of batches."""
        self.stale = self.trained = False
        if self._blind:
            return
        self._earlier |= self._current
        self._current = set(_storages(batch))
        if len(self._earlier) > self._prune_at:
            self._earlier = {ref for ref in self._earlier if not ref.expired()}  # type: ignore[no-untyped-call]
            self._prune_at = max(64, 2 * len(self._earlier))

    def any_stale(self, inputs: object) -> bool:
        """Whether a tensor among ``inputs`` belongs to an earlier batch and not to the last one."""
        return any(ref in self._earlier and ref not in self._current for ref in _storages(inputs))

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Check a forward pass in training mode with gradients; other passes may use any batch."""
        self._untraced(module, args, kwargs)

    def _check(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if torch.is_grad_enabled() and any(part.training for part in module.modules()):
            self.trained = True
            self.stale = self.stale or self.any_stale((args, kwargs))

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(ForwardWatch, blind=True), ()


class MixedRecords:
    """Notices layers through which the records of a batch reach one another, or the saved model."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._norms = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
        self._buffers: dict[str, Tensor] = {}
        self._frozen: list[tuple[str, Tensor, int]] = []

    def deliver(self) -> None:
        """Take note of buffers and frozen parameters at the moment when a batch is handed out."""
        self._buffers = {
            name: buffer.detach().clone()
            for name, buffer in self.module.named_buffers()
            if not name.endswith("num_batches_tracked")
        }
        self._frozen = [  # by torch's count of writes: copies of a large model would cost too much
            (name, p, p._version)
            for name, p in self.module.named_parameters()
            if not p.requires_grad and not p.is_inference()
        ]

    def found(self) -> str | None:
        """A layer that normalises with the batch, or a buffer that changed since the batch was delivered."""
        for name, part in self._norms:
            if part.training or part.running_mean is None:
                return f"the layer {name!r}, a {type(part).__name__},"
        for name, buffer in self.module.named_buffers():
            before = self._buffers.get(name)
            if before is None or buffer.shape != before.shape:
                continue
            if not torch.allclose(buffer, before.to(buffer), rtol=0, atol=0, equal_nan=True):
                return f"the buffer {name!r}, which changed while the model was trained,"
        for name, p, version in self._frozen:
            if p._version != version:
                return f"the frozen parameter {name!r}, which changed while the model was trained,"
        return None


def _storages(batch: object) -> Iterator[StorageWeakRef]:
    """The memory behind every tensor of a batch; sparse tensors and torch's wrappers have none."""
    if isinstance(batch, Tensor):
        try:
            yield StorageWeakRef(batch.untyped_storage())  # type: ignore[no-untyped-call]
        except (NotImplementedError, RuntimeError):
            return
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _storages(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _storages(value)


def refuse_evaluation_mode(private: Any, module: nn.Module) -> None:
    """Have a layer say so if it is trained in evaluation mode: Opacus's hooks fail there, and not say why."""
    handles = getattr(private, "autograd_grad_sample_hooks", None)  # gone with Opacus's own hooks
    if handles is not None:
        check = functools.partial(_check_training_mode, private)
        hooked = [part for part in module.modules() if part._backward_hooks]
        handles += [part.register_full_backward_hook(check, prepend=True) for part in hooked]


def _check_training_mode(private: Any, part: nn.Module, *_: object) -> None:
    if private.hooks_enabled and not part.training:
        raise ShufflePrivacyError(
            f"the model, or a {type(part).__name__} that is to be trained, is in evaluation mode: call "
            "model.train() before a training batch"
        )


def forget_forward_passes(module: nn.Module) -> None:
    """Drop what Opacus's hooks keep of forward passes that no backward pass followed.

    A loop that skips a batch leaves one behind, and no later batch would get per-sample gradients.
    """
    waiting = [p for p in module.parameters() if getattr(p, "_forward_counter", 0)]
    if not waiting:
        return
    for part in module.modules():
        kept = getattr(part, "activations", None)
        if isinstance(kept, list):
            kept.clear()
        if hasattr(part, "max_batch_len"):
            del part.max_batch_len
    for p in waiting:
        p._forward_counter = 0  # type: ignore[attr-defined]
        if hasattr(p, "_current_grad_sample"):
            del p._current_grad_sample
