"""Service nodes' side of a run: mix nodes, which shuffle reports that they cannot read, and aggregators.

What makes a node of the app one is its own ``node_config``, whose keys docs/guides/shuffling.md lists.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from flwr_shuffle.messages import (
    ROLE,
    AggregateRequest,
    Answer,
    MixMessage,
    NodeRole,
    Role,
    RoleQuestion,
    ServiceMessage,
    Step,
    Unable,
    WrongVersionError,
    role_of,
)
from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation import VerifiedTerms
from shuffle_plugins.secure_aggregation.aggregator import Aggregator
from shuffle_plugins.shuffler import (
    BatchLimits,
    BatchRefused,
    Mixer,
    Refusal,
    ShuffleError,
    SpentTokens,
    keys,
    state_beside,
)
from shuffle_plugins.shuffler.mixer import BatchSpool
from shuffle_plugins.shuffler.service import BatchService

_Service = TypeVar("_Service", bound=BatchService)
_Asked = TypeVar("_Asked", MixMessage, AggregateRequest)
_Read = TypeVar("_Read", bound=ServiceMessage)

_log = logging.getLogger("flwr")


def register_mix_node(app: ClientApp, *, limits: BatchLimits | None = None) -> None:
    """Let a node that runs this app be the mix node, if its ``node_config`` says ``shuffle-role="mixer"``.

    Any other node answers that it is not, and nothing else. The app is made without ``client_fn``. ``limits``
    say how much the mix node keeps on disk at once, if its ``node_config`` does not.
    """
    _register(
        app,
        Role.MIXER,
        Mixer,
        MixMessage,
        lambda mixer, asked, config: _mixed(mixer, asked, config, limits or BatchLimits()),
    )


def register_aggregator(app: ClientApp) -> None:
    """Let a node that runs this app be an aggregator, if its ``node_config`` says
    ``shuffle-role="aggregator"``; otherwise as :func:`register_mix_node`.
    """
    _register(
        app,
        Role.AGGREGATOR,
        Aggregator,
        AggregateRequest,
        lambda aggregator, asked, _: _aggregated(aggregator, asked),
    )


def _mixed(mixer: Mixer, asked: MixMessage, config: UserConfig, limits: BatchLimits) -> Answer:
    """Take a piece of a batch, or give one back."""
    spool, request, token = _spool(mixer, config, limits), asked.request, asked.token
    if not asked.items:
        return Answer(token=token, items=_taken(spool, asked, first=asked.first))
    said = spool.put(request, asked.items, first=asked.first)
    if said is None:
        return Answer(token=token)
    _log_rejected(said.rejected.values())
    _log.info("shuffle: %d good envelopes, %d reports given out", said.answered, said.count)
    return Answer(token=token, said=said, items=_taken(spool, asked, first=0))


def _taken(spool: BatchSpool, asked: MixMessage, *, first: int) -> list[bytes]:
    """Part of what was mixed. Whatever fails now is no reason to call the round off: its reports exist."""
    try:
        return spool.take(asked.request, first=first, most=asked.most)
    except BatchRefused:
        raise
    except Exception as error:
        _log_unable(Role.MIXER, error)
        raise BatchRefused(Refusal.NO_ANSWER) from error


def _aggregated(aggregator: Aggregator, request: AggregateRequest) -> Answer:
    """Do the step that a request asks for, and sign the answer."""
    terms, sealed, minimum = request.terms, request.sealed, request.minimum
    proven = isinstance(terms, VerifiedTerms)
    answer = Answer(token=request.token)
    if request.step is Step.CHECK and isinstance(terms, VerifiedTerms):
        found = aggregator.verify(sealed, terms=terms, verify_key=request.verify_key, minimum=minimum)
        shares = [share for _, share in sorted(found.verifier_shares.items())]
        answer = replace(answer, rejected=dict(found.rejected), shares=shares)
    elif request.step is Step.CHECK:
        answer = replace(answer, rejected=aggregator.check(sealed, terms=terms))
    elif isinstance(terms, VerifiedTerms):
        decided = zip(sealed, request.messages, strict=True)
        answer = replace(answer, total=aggregator.add_verified(decided, terms=terms, minimum=minimum))
    else:
        added = aggregator.add_up(sealed, terms=terms, minimum=minimum, exact=True)
        answer = replace(answer, total=added.total.to_bytes())
    _log_rejected(answer.rejected.values())
    if answer.total:
        what = "%d clients whose proofs hold" if proven else "the seeds of %d clients"
        _log.info(f"shuffle: {what} are added up", request.count)
        if terms.window and terms.window.index == 0:
            kept = len(terms.window.coefficients) - 1, aggregator.kept_sums
            _log.info("shuffle: a series of windows begins; the last %d sums of shares are kept in %s", *kept)
    return replace(answer, signature=aggregator.sign(request.said(answer)))


def _register(
    app: ClientApp,
    role: Role,
    kind: type[_Service],
    asks: type[_Asked],
    work: Callable[[_Service, _Asked, UserConfig], Answer],
) -> None:
    """Add the handlers of a role: one that says who the node is, and one that does its work of a round."""

    def known(service: _Service, message: Message, context: Context) -> ServiceMessage:
        asked = _read(RoleQuestion, message)
        return NodeRole.signed(
            service, challenge=asked.challenge, run=str(context.run_id), node=context.node_id
        )

    def worked(service: _Service, message: Message, context: Context) -> ServiceMessage:
        asked = _read(asks, message)
        try:
            return work(service, asked, context.node_config)
        except BatchRefused as refused:
            _log_rejected(refused.rejected.values())
            _log.warning("shuffle: %s (envelopes: %d)", refused, asked.count)
            return asked.refused(refused, service=service)
        except Exception as error:  # Flower would send its text to the server
            _log_unable(role, error)
            return asked.refused(BatchRefused(Refusal.MISCONFIGURED), service=service)

    def handler(
        answer: Callable[[_Service, Message, Context], ServiceMessage],
    ) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                said = answer(service_of(context, kind), message, context)
            except BatchRefused as refused:
                said = Unable(code=refused.code)
            return Message(said.to_content(), reply_to=message)

        return handle

    app.query(role.question.removeprefix("query."))(handler(known))
    app.query(role.work.removeprefix("query."))(handler(worked))


def service_of(context: Context, kind: type[_Service]) -> _Service:
    """The service that a ``node_config`` describes; NOT_THIS_ROLE, or MISCONFIGURED with a reason logged."""
    config, role = context.node_config, Role(kind.role)
    if role_of(config) is not role:
        raise BatchRefused(Refusal.NOT_THIS_ROLE)
    try:
        key_file = _named_in(config, f"shuffle-{role}-key-file")
        state = config.get("shuffle-state-file", str(state_beside(key_file)))
        minimum = checks.whole(
            "shuffle-min-batch in node_config", config.get("shuffle-min-batch"), at_least=2
        )
        files = {"state": _named_in({"shuffle-state-file": state}, "shuffle-state-file")}
        if role is Role.AGGREGATOR and "shuffle-window-file" in config:
            files["windows"] = _named_in(config, "shuffle-window-file")
        return kind(
            key=keys.read_service_key(key_file),
            enrolled=keys.read_enrolled(_named_in(config, "shuffle-enrolled-file")),
            minimum=minimum,
            **files,
        )
    except ValueError as error:
        _log_unable(role, error)
        raise BatchRefused(Refusal.MISCONFIGURED) from None


def _named_in(config: UserConfig, key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ShuffleError(f"{key} is missing in node_config, or is not a string")
    return value


def _spool(mixer: Mixer, config: UserConfig, limits: BatchLimits) -> BatchSpool:
    """The node's batches on disk; limits in its ``node_config`` take the place of ``limits``."""
    folder = config.get("shuffle-batch-folder", f"{config['shuffle-mixer-key-file']}.batches")
    own = BatchLimits(
        most_reports=config.get("shuffle-batch-reports", limits.most_reports),  # type: ignore[arg-type]
        most_bytes=config.get("shuffle-batch-bytes", limits.most_bytes),  # type: ignore[arg-type]
    )
    pinned = config.get("shuffle-mixer-public-key")
    cascade = () if pinned is None else keys.parse_mix_cascade(pinned)
    return BatchSpool(Path(str(folder)), mixer=mixer, cascade=cascade, limits=own)


def _read(kind: type[_Read], message: Message) -> _Read:
    try:
        return kind.from_content(message.content)
    except WrongVersionError as error:
        _log.error("shuffle: the server speaks %s", error)
        raise BatchRefused(Refusal.WRONG_VERSION) from None
    except ValueError as error:
        _log.error("shuffle: a request that cannot be read: %s", error)
        raise BatchRefused(Refusal.UNREADABLE) from None


def _log_unable(role: Role, error: Exception) -> None:
    unforeseen = None if isinstance(error, ValueError) else error
    _log.error("shuffle: this %s cannot work: %s", role.node, error, exc_info=unforeseen)


def _log_rejected(codes: Iterable[Refusal]) -> None:
    for code, count in Counter(codes).items():
        _log.warning("shuffle: envelopes dropped (%s): %d", code, count)


_PARTITION, _PARTITIONS = "partition-id", "num-partitions"


class SimulatedNodes:
    """Makes the last nodes of a simulation aggregators or mix nodes, and the others clients with keys.

    It says in the app what operators would write for a deployment, as docs/guides/flower.md shows. All keys
    are in one folder of this machine: they show that the parties' protocol works, and protect nobody.

    Args:
        context: of a node, or of the server app; its run must be the same for all.
        aggregators: how many nodes are aggregators.
        mixers: how many nodes are mix nodes, in a cascade if there are several.
        minimum: fewest reports that these nodes give out or add up together, at least 2.
        folder: of the keys, and of which rounds were served; by default among the user's temporary files.
    """

    def __init__(
        self,
        context: Context,
        *,
        aggregators: int = 0,
        mixers: int = 0,
        minimum: int = 2,
        folder: Path | str | None = None,
    ) -> None:
        self._context = context
        self._numbers = {
            Role.AGGREGATOR: checks.whole("aggregators", aggregators, at_least=0),
            Role.MIXER: checks.whole("mixers", mixers, at_least=0),
        }
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self._folder = _folder_of(context.run_id) if folder is None else Path(folder)

    @property
    def aggregator_public_keys(self) -> tuple[str, ...]:
        """The aggregators' public keys, for a ``SharedSumStage``."""
        return self._public(Role.AGGREGATOR)

    @property
    def mixer_public_keys(self) -> tuple[str, ...]:
        """The mix nodes' public keys in the order in which they work, for a ``MixNodeStage``."""
        return self._public(Role.MIXER)

    @property
    def node_config(self) -> dict[str, str | int]:
        """What the node of the context has in its ``node_config``; empty if there are no service nodes."""
        services = [(role, place) for role, number in self._numbers.items() for place in range(number)]
        if not services:
            return {}
        place, nodes = (int(self._context.node_config[key]) for key in (_PARTITION, _PARTITIONS))
        clients = nodes - len(services)
        if clients < 2:
            raise ShuffleError(
                f"of {nodes} simulated nodes {len(services)} are aggregators or mix nodes, which leaves "
                f"{clients} clients: simulate more nodes (num-supernodes)"
            )
        enrolled = self._enrolled(clients)
        pinned: dict[str, str | int] = {
            "shuffle-aggregator-public-keys": ",".join(self.aggregator_public_keys),
            "shuffle-mixer-public-key": ",".join(self.mixer_public_keys),
        }
        if place < clients:
            return {
                _PARTITION: place,
                _PARTITIONS: clients,
                "shuffle-signing-key-file": str(enrolled / f"{place}.key"),
                **{key: public for key, public in pinned.items() if public},
            }
        role, place = services[place - clients]
        row: dict[str, str | int] = {}
        if role is Role.MIXER:
            row["shuffle-mixer-public-key"] = pinned["shuffle-mixer-public-key"]
        return row | {
            ROLE: str(role),
            f"shuffle-{role}-key-file": str(self._keys(role) / f"{place}.key"),
            "shuffle-enrolled-file": str(enrolled / "enrolled"),
            "shuffle-min-batch": self._minimum,
        }

    def _public(self, role: Role) -> tuple[str, ...]:
        if not (number := self._numbers[role]):
            return ()
        folder = self._keys(role)
        return tuple(keys.read_service_key(folder / f"{place}.key").public.hex() for place in range(number))

    def _keys(self, role: Role) -> Path:
        number = self._numbers[role]
        with _made(self._folder / f"{role}-{number}") as draft:
            for file in [draft / f"{place}.key" for place in range(number)] if draft else []:
                key = keys.ServiceKey.generate()
                keys.write_private_key(file, key)
                SpentTokens.create(state_beside(file), public_key=key.public.sealing)
        return self._folder / f"{role}-{number}"

    def _enrolled(self, clients: int) -> Path:
        folder = self._folder / f"clients-{clients}"
        with _made(folder) as draft:
            if draft:
                signing = [keys.SigningKey.generate() for _ in range(clients)]
                for place, key in enumerate(signing):
                    keys.write_private_key(draft / f"{place}.key", key)
                (draft / "enrolled").write_text(
                    "".join(f"{keys.public_key_bytes(key).hex()}\n" for key in signing)
                )
        return folder


@contextmanager
def _made(folder: Path) -> Iterator[Path | None]:
    """An empty folder to fill, which becomes ``folder`` as a whole; None if another process has made it."""
    if folder.is_dir():
        yield None
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        yield draft
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _folder_of(run: int) -> Path:
    """The folder of a run's keys among the user's temporary files, which nobody else can have made."""
    known = hasattr(os, "getuid")
    user = os.getuid() if known else 0
    folder = Path(tempfile.gettempdir()) / f"flwr-shuffle-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if known and (folder.stat().st_uid != user or folder.is_symlink()):
        raise ShuffleError(f"{folder} is another user's: give SimulatedNodes a folder of your own")
    return folder / f"run-{run}"
