"""The client's side: a Flower mod that lets one randomised report of an update out, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from flwr.app import Array, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from flwr_shuffle.client_ledger import charge
from flwr_shuffle.limits import (
    CLOSED,
    OPEN_TYPES,
    ClientRefusal,
    ClientRefused,
    ClientSettings,
    check_max_local_delta,
    open_types,
)
from flwr_shuffle.messages import Instruction, context_of, instruction_of, plain_payload, refusal, reply
from flwr_shuffle.randomizers import Randomizer
from flwr_shuffle.updates import Layout
from shuffle_plugins.ledger import ClientLimits
from shuffle_plugins.protocols.sum_spec import SumSpec
from shuffle_plugins.randomness import PROBABILITY_BITS, SecureRandomness
from shuffle_plugins.shuffler.envelopes import seal
from shuffle_plugins.shuffler.errors import Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import read_signing_key

OnFailure = Literal["zero", "error"]
Packing = Callable[[bytes | None], bytes]
"""Makes a payload of a report, or of None for a dummy; both come out equally long."""

_log = logging.getLogger("flwr")


class ShuffleMod:
    """Replaces what training returns by one ε0-LDP report of the update, of fixed size.

    Give it as the app's first mod, ``ClientApp(mods=[ShuffleMod(), …])``: the first is the outermost and sees
    what leaves. For a train message it

    1. reads the server's instruction and refuses, by a constant text, what the client's limits do not allow;
    2. charges the client's ledger, on disk, before it trains: a crash costs budget, never privacy;
    3. trains, takes the change of all floating-point arrays as one vector, and clips it to the mechanism's
       ball. Metrics, integer arrays and everything else are dropped;
    4. randomises it with fresh entropy of the operating system, and only then tosses in secret whether the
       report or a dummy goes out, if the server asked for self-sampling;
    5. packs either in a payload of the same length, sealed where the client has pinned a mixer's key.

    A train message without an instruction is refused, and so are messages of every other type: what an app
    answers to ``evaluate``, ``query``, and, made with ``client_fn``, to ``get_parameters`` and
    ``get_properties``, would leave the client without protection. The operator of a node can allow each by
    ``shuffle-allow-evaluate``, ``shuffle-allow-query``, ``shuffle-allow-get-parameters`` and
    ``shuffle-allow-get-properties``, set to ``true`` in its ``node_config``.

    The client's limits come from the constructor and from its ``node_config``, where it states

    - ``shuffle-max-local-epsilon``: largest ε0 of one round, in nats. Needed, unless the constructor has it.
      ``inf`` agrees to multi-message sums, whose shares protect nobody before they are added up;
    - ``shuffle-max-rounds`` and ``shuffle-max-total-local-epsilon``: over all rounds in its ledger. One of
      them is needed, unless the constructor has it;
    - ``shuffle-max-local-delta``: largest δ0; 0 by default, which admits pure ε0 mechanisms alone;
    - ``shuffle-ledger-file``: SQLite file that counts over runs and restarts; needed beside any limit above.
      Where the constructor alone has limits, as in a simulation, the count is kept in the run's context
      without it, and a new run starts from zero;
    - ``shuffle-mixer-public-key`` and ``shuffle-signing-key-file``: the mixer to seal to, and the client's
      own key. With them unsealed rounds are refused.

    Where both set a limit the stricter one holds. Every round that is answered is charged, dummies too: to
    refuse only when a report was due would tell the server who had reported before.

    Args:
        limits: limits of the app's own, for all clients.
        max_local_delta: the app's own largest δ0; needed here or in ``node_config`` for Gaussian noise.
        on_failure: what to answer when training fails, or returns something else than the model's arrays, or
            NaN. ``"zero"`` reports an update of zeros: that a client failed depends on its data, and a
            missing report would be a bit without protection. ``"error"`` answers with a constant error
            instead, which says that this client failed.
        allow: types of messages that the app answers without protection, of ``"evaluate"``, ``"query"``,
            ``"get_parameters"`` and ``"get_properties"``. For simulations: on a node whose ``node_config``
            has any ``shuffle-`` key it counts for nothing.

    Raises:
        ValueError: if an argument is neither.
    """

    def __init__(
        self,
        *,
        limits: ClientLimits | None = None,
        max_local_delta: float | None = None,
        on_failure: OnFailure = "zero",
        allow: Iterable[str] = (),
    ) -> None:
        if limits is not None and not isinstance(limits, ClientLimits):
            raise ValueError(f"limits must be ClientLimits, got {limits!r}")
        if on_failure not in ("zero", "error"):
            raise ValueError(f'on_failure must be "zero" or "error", got {on_failure!r}')
        allowed = frozenset([allow] if isinstance(allow, str) else allow)
        if not allowed <= OPEN_TYPES.keys():
            raise ValueError(f"allow names types of messages, of {sorted(OPEN_TYPES)}; got {sorted(allowed)}")
        self._allow = allowed
        self._limits = limits
        self._max_local_delta = None if max_local_delta is None else check_max_local_delta(max_local_delta)
        self._on_failure = on_failure

    def __repr__(self) -> str:
        return (
            f"ShuffleMod(limits={self._limits!r}, max_local_delta={self._max_local_delta!r}, "
            f"on_failure={self._on_failure!r}, allow={sorted(self._allow)!r})"
        )

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message; see the class."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return self._unprotected(message, context, call_next)
        try:
            task = self._agreed(message, context)
            report = self._report(task, message, context, call_next)
            return reply(task.pack(report if _coin(task.participation) else None), to=message)
        except ClientRefused as refused:
            _log.warning("%s%s", refused, f" ({refused.__cause__})" if refused.__cause__ else "")
            return refusal(str(refused.code), to=message)
        except Exception:
            _log.exception("The shuffle mod failed; the server is told no more than that.")
            return refusal(str(ClientRefusal.INTERNAL), to=message)

    def _unprotected(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """The app's own answer where the operator allows that, or the mix node's; otherwise a refusal."""
        kind = message.metadata.message_type.partition(".")[0]
        try:
            if kind == MessageType.QUERY and (answer := _mix_node(message, context, call_next)) is not None:
                return answer
            if kind in open_types(context.node_config, by_app=self._allow):
                return call_next(message, context)
        except ClientRefused as refused:
            _log.warning("%s (%s)", refused, refused.__cause__)
            return refusal(str(refused.code), to=message)
        code = CLOSED.get(kind, ClientRefusal.UNKNOWN_TYPE)
        _log.warning("%s", code)
        return refusal(str(code), to=message)

    def _agreed(self, message: Message, context: Context) -> _Task:
        """What to do, once it is checked and paid for. Nothing here depends on the client's data."""
        instruction = _instruction(message)
        if instruction.sealed and isinstance(instruction.mechanism, SumSpec):
            raise ClientRefused(ClientRefusal.SEALED_SUM)
        settings = ClientSettings.of(
            context.node_config, limits=self._limits, max_local_delta=self._max_local_delta
        )
        key, arrays = _model(message)
        try:
            layout = Layout.of(arrays)
            before = layout.flatten(arrays)
        except ValueError as error:
            raise ClientRefused(ClientRefusal.BAD_MODEL) from error
        try:
            mechanism = instruction.mechanism.build(dim=layout.dim)
            size = instruction.mechanism.report_bytes(dim=layout.dim)
        except Exception as error:  # a mechanism may come from any package
            raise ClientRefused(ClientRefusal.BAD_MECHANISM) from error
        if mechanism.local_delta > settings.max_local_delta:
            raise ClientRefused(ClientRefusal.LOCAL_DELTA)
        pack = _packing(settings, instruction, dim=layout.dim, size=size)
        try:
            pack(None)  # whether anything can be sealed is known before it is paid for
        except ShuffleError as error:
            raise ClientRefused(ClientRefusal.BAD_ANALYZER_KEY) from error
        charge(context, settings, instruction, mechanism)
        return _Task(key, layout, before, mechanism, instruction.participation, pack)

    def _report(self, task: _Task, message: Message, context: Context, call_next: ClientAppCallable) -> bytes:
        """Train and randomise the update; zeros in its stead if there is none to be had."""
        try:
            answer = call_next(message, context)
            if answer.has_error():
                raise ValueError(f"training answered with an error: {answer.error.reason}")
            return task.report(task.layout.flatten(_returned(answer, task.key)).sub_(task.before))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, a cancelled task: no reply would be a bit, too
            if self._on_failure == "error":
                _log.exception("Training failed; the server is told no more than that.")
                raise ClientRefused(ClientRefusal.TRAINING_FAILED) from error
            _log.exception("Training failed; an update of zeros is reported.")
            return task.report(torch.zeros_like(task.before))


@dataclass(frozen=True, slots=True)
class _Task:
    """A round that the client has agreed to, and paid for."""

    key: str
    layout: Layout
    before: Tensor
    mechanism: Randomizer
    participation: float
    pack: Packing

    def report(self, update: Tensor) -> bytes:
        """One report of an update (dim,); ValueError if it is not finite."""
        return self.mechanism.randomize(update.unsqueeze(0), clip=True).to_bytes()


def _coin(probability: float) -> bool:
    """True with this probability, rounded down to a multiple of 2**-62, from the system's entropy."""
    if probability == 1:
        return True
    threshold = torch.tensor([int(probability * (1 << PROBABILITY_BITS))])
    return bool(SecureRandomness().bernoulli(threshold))


def _instruction(message: Message) -> Instruction:
    try:
        instruction = instruction_of(message)
    except ValueError as error:
        raise ClientRefused(ClientRefusal.BAD_INSTRUCTION) from error
    if instruction is None:
        raise ClientRefused(ClientRefusal.NO_INSTRUCTION)
    return instruction


def _mix_node(message: Message, context: Context, call_next: ClientAppCallable) -> Message | None:
    """The answer to a query for the mix node, from it or from any other node; None to other queries."""
    from flwr_shuffle.mix_messages import MIX_QUERY, ROLE_QUERY, refusal_content
    from flwr_shuffle.mix_node import MIXER, ROLE

    if context.node_config.get(ROLE) == MIXER:
        return call_next(message, context)
    if message.metadata.message_type in (ROLE_QUERY, MIX_QUERY):
        return Message(refusal_content(Refusal.NOT_A_MIXER), reply_to=message)
    return None


def _model(message: Message) -> tuple[str, dict[str, Array]]:
    """The model's arrays and their key. The mapping is a copy: apps may empty a record as they read it."""
    records = message.content.array_records
    if len(records) != 1:
        raise ClientRefused(ClientRefusal.BAD_MODEL)
    [(key, record)] = records.items()
    return key, dict(record)


def _returned(answer: Message, key: str) -> Mapping[str, Array]:
    records = answer.content.array_records
    if key in records:
        return records[key]
    if len(records) != 1:
        raise ValueError(f"training returned {len(records)} ArrayRecords and none under {key!r}")
    return next(iter(records.values()))


def _packing(settings: ClientSettings, instruction: Instruction, *, dim: int, size: int) -> Packing:
    if settings.mixer_key is None or settings.signing_key_file is None:
        if instruction.sealed:
            raise ClientRefused(ClientRefusal.NO_MIXER_KEY)
        return partial(plain_payload, size=size)
    if not instruction.sealed:
        raise ClientRefused(ClientRefusal.UNSEALED)
    try:
        signing_key = read_signing_key(settings.signing_key_file)
    except ShuffleError as error:
        raise ClientRefused(ClientRefusal.BAD_SIGNING_KEY) from error
    return partial(
        seal,
        size=size,
        context=context_of(instruction, dim=dim),
        analyzer_key=instruction.analyzer_key,
        mixer_key=settings.mixer_key,
        signing_key=signing_key,
    )
