"""The optimizer that clips, randomises every sample's whole gradient once, and averages."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor, nn
from torch.optim import Optimizer

from opacus_shuffle.errors import CohortMismatch, ShufflePrivacyError
from shuffle_plugins.accounting import Sampling, ShuffleRound
from shuffle_plugins.mechanisms import LocalRandomizer, Rows, registry
from shuffle_plugins.randomness import Randomness, SecureRandomness


class RandomizerFactory(Protocol):
    """Builds a randomizer; a ``LocalRandomizer`` class is one, and so is a ``functools.partial`` of it."""

    def __call__(self, *, local_epsilon: float, dim: int, radius: float) -> LocalRandomizer:
        """Build for ε0 in nats, the number of trainable numbers, and the radius of the norm ball."""


class AccountingHook(ABC):
    """A step hook that records the round about to be released.

    The optimizer releases nothing unless one is attached.
    """

    @abstractmethod
    def __call__(self, optimizer: ShuffleMixin) -> None:
        """Record the round, or raise to refuse it."""


def randomizer_factory(randomizer: str | RandomizerFactory) -> RandomizerFactory:
    """Turn a registry name into a factory; classes and factories pass through.

    Raises:
        ShufflePrivacyError: if ``randomizer`` is neither, or is an instance.
    """
    if isinstance(randomizer, str):
        name = randomizer
        return lambda *, local_epsilon, dim, radius: registry.get(
            name, local_epsilon=local_epsilon, dim=dim, radius=radius
        )
    if isinstance(randomizer, LocalRandomizer) or not callable(randomizer):
        raise ShufflePrivacyError(
            "randomizer must be a registered name, a LocalRandomizer class, or a factory taking "
            f"local_epsilon, dim and radius; got {randomizer!r}. An instance will not do: dim is known "
            "only here"
        )
    return randomizer


def build_randomizer(
    factory: RandomizerFactory, *, local_epsilon: float, dim: int, radius: float
) -> LocalRandomizer:
    """Build a randomizer and check that it is the one asked for.

    Raises:
        ShufflePrivacyError: if the factory returned something else than was asked for.
        ValueError: from the randomizer, for values outside its range.
    """
    try:
        mechanism = factory(local_epsilon=local_epsilon, dim=dim, radius=radius)
    except TypeError as error:
        raise ShufflePrivacyError(
            "the randomizer cannot be built with local_epsilon, dim and radius alone. Gradients are vectors: "
            f"one of categories will not do, one with further options comes as a partial ({error})"
        ) from error
    if not isinstance(mechanism, LocalRandomizer):
        raise ShufflePrivacyError(f"the randomizer factory returned {mechanism!r}, not a LocalRandomizer")
    built = (mechanism.local_epsilon, mechanism.dim, mechanism.radius)
    if built != (local_epsilon, dim, radius):
        raise ShufflePrivacyError(
            f"asked for (local_epsilon, dim, radius) = {(local_epsilon, dim, radius)}, "
            f"the randomizer has {built}"
        )
    if not mechanism.shufflable:
        raise ShufflePrivacyError(
            f"a report of {mechanism!r} can be read only by who knows whose it is: it cannot be shuffled"
        )
    return mechanism


class ShuffleMixin:
    """Replaces a :class:`DPOptimizer`'s clip-and-noise by clip-and-randomise; mix in before it.

    Every sample's gradient over *all* trainable parameters is one vector and spends ε0 once. Only the sum
    of the randomised vectors leaves :meth:`clip_and_accumulate`; a sum does not depend on order, so it is the
    shuffle. No other noise is added.

    Refuses, before anything is recorded or released, a round that is not what the accountant is told: another
    number of gradients than the cohort, accumulated gradients, NaN or infinite gradients, no accountant
    attached. After a refusal the round is dropped, with the rest of its physical batches, and every
    ``p.grad`` is cleared.

    Neighbouring relation: replace-one at fixed population.
    """

    # What the base optimizer brings.
    params: list[Any]
    accumulated_iterations: int
    grad_samples: list[Tensor]
    original_optimizer: Optimizer
    step_hook: Callable[[Any], None] | None
    _step_skip_queue: list[bool]
    _is_last_step_skipped: bool
    _get_flat_grad_sample: Callable[[nn.Parameter], Tensor]
    _check_skip_next_step: Callable[[], bool]

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        randomizer: str | RandomizerFactory,
        local_epsilon: float,
        max_grad_norm: float,
        population: int,
        cohort: int,
        sampling: Sampling | str = Sampling.WITHOUT_REPLACEMENT,
        loss_reduction: str = "mean",
        randomness: Randomness | None = None,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: the optimizer that takes the randomised average.
            randomizer: name in the registry, a ``LocalRandomizer`` class, or a factory.
            local_epsilon: ε0 of one sample's gradient in one step, in nats.
            max_grad_norm: radius of the randomizer's norm ball, in its own norm (``LocalRandomizer.norm``).
            population: n, the size of the data set over all processes.
            cohort: k, the (Poisson: expected) number of samples in a step over all processes.
            sampling: ``"without-replacement"`` or ``"poisson"``, the law of the batch sampler.
            loss_reduction: ``"mean"`` divides the sum by k, ``"sum"`` leaves it; as the loss does.
            randomness: the randomizer's coins; a fresh cryptographic generator by default. Processes must not
                share a stream.

        Raises:
            ShufflePrivacyError: if the configuration cannot be accounted for.
            ValueError: from the randomizer or the round, for numbers outside their range.
        """
        sampling = Sampling(sampling)
        if sampling not in (Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON):
            raise ShufflePrivacyError(
                f"sampling must be 'without-replacement' or 'poisson', got {sampling.value!r}"
            )
        if isinstance(cohort, bool) or not isinstance(cohort, int):
            raise ShufflePrivacyError(f"cohort must be a positive integer, got {cohort!r}")
        if isinstance(optimizer, DPOptimizer):
            raise ShufflePrivacyError("the optimizer is private already; pass its original_optimizer")
        self.original_optimizer = optimizer
        if not self.params:
            raise ShufflePrivacyError("the optimizer holds no trainable parameter: nothing would be private")
        self._trained = tuple(self.params)
        self._population = population
        self._cohort = cohort
        self._sampling = sampling
        self._randomness = SecureRandomness() if randomness is None else randomness
        self._hooks: tuple[Callable[[Any], None], ...] = ()
        self._received = 0
        self._dropping = False
        self._expected_rounds: int | None = None
        self._build(
            factory=randomizer_factory(randomizer), local_epsilon=local_epsilon, max_grad_norm=max_grad_norm
        )
        super().__init__(
            optimizer,
            noise_multiplier=None,  # type: ignore[call-arg]
            max_grad_norm=max_grad_norm,
            expected_batch_size=cohort / self._num_processes(),
            loss_reduction=loss_reduction,
        )

    # ---- configuration, read afresh at every step -------------------------------------------------------

    def _build(self, *, factory: RandomizerFactory, local_epsilon: float, max_grad_norm: float) -> None:
        if self._received:
            raise ShufflePrivacyError(
                "the randomizer cannot change inside a round: its reports must all come from one randomizer. "
                "Change it after step() has released the round"
            )
        for name, value in (("local_epsilon", local_epsilon), ("max_grad_norm", max_grad_norm)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ShufflePrivacyError(f"{name} must be one finite number, got {value!r}")
            if value <= 0:
                raise ShufflePrivacyError(f"{name} must be positive, got {value!r}")
        mechanism = build_randomizer(
            factory,
            local_epsilon=float(local_epsilon),
            dim=sum(p.numel() for p in self._trained),
            radius=float(max_grad_norm),
        )
        self._round = mechanism.shuffle_round(
            population=self._population, cohort=self._cohort, sampling=self._sampling
        )
        self._factory = factory
        self._mechanism = mechanism

    @property
    def local_epsilon(self) -> float:
        """ε0 of one sample's gradient in one step, in nats; assign to change it from the next round on."""
        return float(self._mechanism.local_epsilon)

    @local_epsilon.setter
    def local_epsilon(self, value: float) -> None:
        self._build(factory=self._factory, local_epsilon=value, max_grad_norm=self._mechanism.radius)

    @property
    def max_grad_norm(self) -> float:
        """Radius of the randomizer's norm ball; assign to change it from the next round on."""
        return float(self._mechanism.radius)

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        if value != self._mechanism.radius:
            self._build(
                factory=self._factory, local_epsilon=self._mechanism.local_epsilon, max_grad_norm=value
            )

    @property
    def noise_multiplier(self) -> float:
        """Absent: no noise is added to the sum, so whatever reads this would account for the wrong thing."""
        raise AttributeError(
            "a shuffle optimizer has no noise_multiplier: its privacy is set by local_epsilon, and its cost "
            "is known only to a subsampled_shuffle accountant"
        )

    @noise_multiplier.setter
    def noise_multiplier(self, value: float | None) -> None:
        if value is not None:
            raise AttributeError("a shuffle optimizer has no noise_multiplier: assign local_epsilon instead")

    @property
    def mechanism(self) -> LocalRandomizer:
        """The randomizer now in use."""
        return self._mechanism

    @property
    def shuffle_round(self) -> ShuffleRound:
        """What the next step reveals, as accounted for (replace-one, against an observer of the model)."""
        return self._round

    # ---- hooks ------------------------------------------------------------------------------------------

    def attach_step_hook(self, fn: Callable[[Any], None]) -> None:
        """Add a hook that runs before each release. Hooks add up: a second one disconnects no accountant."""
        self._hooks = (*self._hooks, fn)
        self.step_hook = self._run_hooks

    def _run_hooks(self, _: ShuffleMixin) -> None:
        for hook in self._hooks:
            hook(self)

    # ---- one step ---------------------------------------------------------------------------------------

    def clip_and_accumulate(self) -> None:
        """Clip and randomise each sample's gradient once over all parameters; add the sum to ``summed_grad``.

        Raises:
            ShufflePrivacyError: for accumulated or missing per-sample gradients, or changed parameters.
            ValueError: for NaN or infinite gradients.
        """
        params = self.params
        self._check_parameters(params)
        for p in params:
            _check_processed_flag(p.grad_sample)
        sizes = [p.numel() for p in params]
        dtype = torch.float32
        for p in params:
            dtype = torch.promote_types(dtype, p.dtype)
        grad_samples = self.grad_samples
        rows = Rows([g.reshape(len(g), size).to(dtype) for g, size in zip(grad_samples, sizes, strict=True)])
        total = self._mechanism.randomize_sum(rows, randomness=self._randomness, clip=True)
        for p, part in zip(params, torch.split(total, sizes), strict=True):
            summed = part.view(p.shape).to(p.dtype)
            p.summed_grad = summed if p.summed_grad is None else p.summed_grad + summed
            _mark_as_processed(p.grad_sample)
        self._received += rows.num_rows

    def _check_parameters(self, params: list[nn.Parameter]) -> None:
        """A parameter that left the randomised vector would be updated with its raw gradient."""
        if len(params) != len(self._trained) or any(
            p is not q for p, q in zip(params, self._trained, strict=True)
        ):
            raise ShufflePrivacyError(
                "the trainable parameters are not those that the randomizer was built for: call make_private "
                "again after adding, freezing or unfreezing parameters"
            )
        for p in params:
            self._check_grad_sample(p)

    @staticmethod
    def _check_grad_sample(p: nn.Parameter) -> None:
        grad_sample = getattr(p, "grad_sample", None)
        if isinstance(grad_sample, list) and len(grad_sample) != 1:
            raise ShufflePrivacyError(
                f"{len(grad_sample)} batches are accumulated in one step, but a round is one draw of the "
                "sampler: call step() and zero_grad() after every batch, or use BatchMemoryManager"
            )
        if grad_sample is None:
            raise ShufflePrivacyError(
                f"a trainable parameter of shape {tuple(p.shape)} has no per-sample gradient. Freeze "
                "parameters that the loss does not use (requires_grad=False, before make_private); run "
                "evaluation under torch.no_grad() and module.eval(); call backward() before step()"
            )

    def add_noise(self) -> None:
        """Check the round and move the randomised sum to ``p.grad``; the noise is in it already.

        Raises:
            ShufflePrivacyError: if no accountant is attached, or the batch is from elsewhere than an attached
                sampler.
            CohortMismatch: if the round does not hold exactly the cohort (sampling without replacement).
        """
        if not any(isinstance(hook, AccountingHook) for hook in self._hooks):
            raise ShufflePrivacyError(
                "no shuffle accountant is attached, so the step's cost would go unrecorded: call "
                "optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=k / n))"
            )
        if self._expected_rounds == 0:
            raise ShufflePrivacyError(
                "this batch was not drawn by the sampler that the accounting is for: train on the loader "
                "that make_private returned"
            )
        received = self._count_received()
        if self._sampling is Sampling.WITHOUT_REPLACEMENT and received != self._cohort:
            raise CohortMismatch(
                f"the step processed {received} gradients, its cohort is {self._cohort}: train on the loader "
                "that make_private returned (or one with batch_sampler=FixedSizeSampler(...)), every batch "
                "whole"
            )
        for p in self.params:
            _check_processed_flag(p.summed_grad)
            p.grad = p.summed_grad.clone()
            _mark_as_processed(p.summed_grad)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Take one physical batch in; on a round's last one, check it, record its cost, and set ``p.grad``.

        Returns:
            True if the original optimizer may step now.
        """
        if self._dropping:
            self._dropping = self._check_skip_next_step()
            self._clear_gradients()
            return False
        queued = len(self._step_skip_queue)
        try:
            self._check_parameters(self.params)
            released: bool = super().pre_step(closure)  # type: ignore[misc]
        except BaseException:
            if len(self._step_skip_queue) == queued:
                self._dropping = self._check_skip_next_step()
            self._finish_round()
            self._clear_gradients()
            raise
        if released:
            self._finish_round()
        return released

    def _finish_round(self) -> None:
        self._received = 0
        if self._expected_rounds:
            self._expected_rounds -= 1

    def _clear_gradients(self) -> None:
        self._is_last_step_skipped = False
        for p in self._trained:
            p.summed_grad = None
            p.grad_sample = None
            p.grad = None

    def begin_iteration(self) -> None:
        """Forget a round that was begun and not released; from now on only announced rounds are taken.

        A sampler calls this when it is attached and whenever an iteration starts, so that the leftovers of an
        iteration that was broken off cannot meet the next cohort.
        """
        self._step_skip_queue.clear()
        self._dropping = False
        self._received = 0
        self._expected_rounds = 0
        self._clear_gradients()

    def expect_round(self) -> None:
        """Take note that an attached sampler has drawn a cohort."""
        self._expected_rounds = (self._expected_rounds or 0) + 1

    def _count_received(self) -> int:
        return self._received

    @staticmethod
    def _num_processes() -> int:
        return 1


class ShuffleDPOptimizer(ShuffleMixin, DPOptimizer):  # type: ignore[misc]
    """Opacus's ``DPOptimizer`` with local randomisation and shuffling in place of Gaussian noise.

    See :class:`ShuffleMixin`.
    """


class DistributedShuffleDPOptimizer(ShuffleMixin, DistributedDPOptimizer):  # type: ignore[misc]
    """The same over several processes: each randomises its part of one common cohort, the sums are reduced.

    Before a round is recorded the processes agree on its total size and that none of them refuses it; if one
    does, all raise.
    """

    _agreed = False

    @staticmethod
    def _num_processes() -> int:
        return int(torch.distributed.get_world_size())

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """As in :class:`ShuffleMixin`; a refusal here makes the other processes refuse too."""
        self._agreed = False
        dropping = self._dropping
        try:
            return super().pre_step(closure)
        except Exception:
            if not self._agreed and not dropping:
                self._agree(refused=True)
            raise

    def _count_received(self) -> int:
        votes = self._agree(refused=False)
        if any(vote[1] for vote in votes):
            raise ShufflePrivacyError("another process refused this round; its own error says why")
        if len({vote[2] for vote in votes}) > 1:
            raise ShufflePrivacyError(
                "the processes disagree on the round: give all of them the whole data set, and the same "
                "batch size, randomizer, local_epsilon and sampling"
            )
        return sum(vote[0] for vote in votes)

    def _agree(self, *, refused: bool) -> list[list[int]]:
        """Each process's (gradients received, refusal, checksum of its round)."""
        checksum = zlib.crc32(repr((self._round.state(), self._mechanism.radius)).encode())
        own = torch.tensor(
            [self._received, int(refused), checksum], dtype=torch.int64, device=self.params[0].device
        )
        votes = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(votes, own)
        self._agreed = True
        return [vote.tolist() for vote in votes]
