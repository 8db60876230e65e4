"""Service nodes in a simulation, whose nodes have no operators that could set them up.

Flower's simulation engine gives every node two entries of ``node_config``: ``partition-id`` and
``num-partitions``. What an operator would write for a deployment, the app itself says here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context

from flwr_shuffle.service_messages import ROLE, Role
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import ShuffleError, SpentTokens, keys, state_beside

SimulatedConfig = Callable[[Context], Mapping[str, bool | float | int | str]]
"""What a simulated node's own configuration has besides Flower's, by the node's context."""

_PARTITION, _PARTITIONS = "partition-id", "num-partitions"


class SimulatedNodes:
    """Makes the last nodes of a simulation aggregators or mix nodes, and the others clients with keys.

    A simulation of n nodes with k of these has n − k clients, which are partitions 0 to n − k − 1 of n − k,
    so that data are divided among clients alone. Everybody's keys are made when they are first needed, in one
    folder of this machine: they show that the parties' protocol works, and protect nobody.

    .. code-block:: python

        def service_nodes(context):   # in the client app and in the server app
            return SimulatedNodes(context, aggregators=2)

        app = ClientApp(mods=[ShuffleMod(node_config=lambda context: service_nodes(context).node_config)])
        stage = SharedSumStage(aggregator_public_keys=service_nodes(context).aggregator_public_keys)

    Args:
        context: of a node, or of the server app; its run must be the same for all.
        aggregators: how many nodes are aggregators.
        mixers: how many nodes are mix nodes, in a cascade if there are several.
        minimum: fewest reports that these nodes give out or add up together, at least 2.
        folder: where the keys are, and which rounds were served; by default a folder of the run, among the
            temporary files of the user.

    Raises:
        ValueError: if a number is out of range.
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
        """What the node of the context has in its ``node_config``; empty if there are no service nodes.

        Raises:
            ShuffleError: if there are no two nodes left to be clients, or a file cannot be used.
        """
        services = sum(self._numbers.values())
        if not services:
            return {}
        place, nodes = (int(self._context.node_config[key]) for key in (_PARTITION, _PARTITIONS))
        clients = nodes - services
        if clients < 2:
            raise ShuffleError(
                f"of {nodes} simulated nodes {services} are aggregators or mix nodes, which leaves {clients} "
                "clients: simulate more nodes (num-supernodes)"
            )
        enrolled = self._enrolled(clients)
        if place < clients:
            return self._client(place, clients, enrolled)
        place -= clients
        role = Role.AGGREGATOR if place < self._numbers[Role.AGGREGATOR] else Role.MIXER
        place -= 0 if role is Role.AGGREGATOR else self._numbers[Role.AGGREGATOR]
        return {
            **({"shuffle-mixer-public-key": ",".join(self.mixer_public_keys)} if role is Role.MIXER else {}),
            ROLE: str(role),
            f"shuffle-{role}-key-file": str(self._keys(role) / f"{place}.key"),
            "shuffle-enrolled-file": str(enrolled / "enrolled"),
            "shuffle-min-batch": self._minimum,
        }

    def _client(self, place: int, clients: int, enrolled: Path) -> dict[str, str | int]:
        pinned = {
            "shuffle-aggregator-public-keys": self.aggregator_public_keys,
            "shuffle-mixer-public-key": self.mixer_public_keys,
        }
        return {
            _PARTITION: place,
            _PARTITIONS: clients,
            "shuffle-signing-key-file": str(enrolled / f"{place}.key"),
            **{key: ",".join(public) for key, public in pinned.items() if public},
        }

    def _public(self, role: Role) -> tuple[str, ...]:
        if not (number := self._numbers[role]):
            return ()
        folder = self._keys(role)
        return tuple(keys.read_service_key(folder / f"{place}.key").public.hex() for place in range(number))

    def _keys(self, role: Role) -> Path:
        """The folder of the private keys of a role's nodes."""
        number = self._numbers[role]
        with _made(self._folder / f"{role}-{number}") as draft:
            for file in [draft / f"{place}.key" for place in range(number)] if draft else []:
                key = keys.ServiceKey.generate()
                keys.write_private_key(file, key)
                SpentTokens.create(state_beside(file), public_key=key.public.sealing)
        return self._folder / f"{role}-{number}"

    def _enrolled(self, clients: int) -> Path:
        """The folder of so many clients' signing keys, and of the list of their public keys."""
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
    """An empty folder to fill, which becomes ``folder`` as a whole; None if another process has made it
    already.
    """
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
