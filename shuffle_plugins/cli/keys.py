"""``keys``: key pairs of mixers, aggregators and clients, and lists of enrolled clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuffle_plugins import shuffler
from shuffle_plugins.cli import output
from shuffle_plugins.cli.commands import option

_NewFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="New file for the private key; never overwritten.")
]
_StateOption = Annotated[
    Path | None, option("--state FILE", "New file for spent rounds; FILE.rounds by default.")
]
_EnrolledFile = Annotated[
    Path, typer.Argument(metavar="ENROLLED", help="List of a mixer or aggregator; made if need be.")
]
_PublicKey = Annotated[
    str, typer.Argument(metavar="KEY", help="A client's public key, 64 hexadecimal digits.")
]

keys_command = typer.Typer(
    help="Keys of mix nodes, aggregators and clients. What is printed is public; what is written is not.",
)


@keys_command.command("aggregator")
@keys_command.command("mixer")
def _service(file: _NewFile, state: _StateOption = None) -> None:
    """Write a mixer's or an aggregator's keys to a new FILE, its spent rounds to another; print what to pin.

    Clients and the server pin the public key. The two files belong together; give no node the keys of
    another.

    Without the second, old rounds could be replayed: if it is lost, make new ones and give the new public key
    to the clients.
    """
    key = shuffler.keys.ServiceKey.generate()
    rounds = state or shuffler.state_beside(file)
    if file.absolute() == rounds.absolute():
        raise shuffler.ShuffleError("the key and its spent rounds need a file each")
    _check_new(file)
    _check_new(rounds)
    shuffler.SpentTokens.create(rounds, public_key=key.public.sealing)
    shuffler.keys.write_private_key(file, key)
    output.remark(key.public.hex())


@keys_command.command("client")
def _client(file: _NewFile) -> None:
    """Write a client's new signing key to a new FILE; print the public key to be enrolled."""
    key = shuffler.keys.SigningKey.generate()
    _check_new(file)
    shuffler.keys.write_private_key(file, key)
    output.remark(shuffler.keys.public_key_bytes(key).hex())


@keys_command.command("public")
def _public(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A private key of any party.")],
) -> None:
    """Print the public key that belongs to the private one in FILE, of a mixer, aggregator or client."""
    key = shuffler.keys.read_private_key(file)
    if isinstance(key, shuffler.keys.ServiceKey):
        output.remark(key.public.hex())
    else:
        output.remark(shuffler.keys.public_key_bytes(key).hex())


@keys_command.command("enrol")
def _enrol(
    enrolled: _EnrolledFile,
    key: _PublicKey,
    note: Annotated[str, typer.Option("--note", help="Comment to stand beside the key.")] = "",
) -> None:
    """Add KEY, a client's public key in hexadecimal, to a mixer's or aggregator's list, the file ENROLLED.

    The file is made if there is none. A mix node or aggregator reads it anew every round.
    """
    _check_folder(enrolled)
    shuffler.keys.enrol_client(enrolled, shuffler.keys.parse_public_key(key), note=note)


@keys_command.command("revoke")
def _revoke(enrolled: _EnrolledFile, key: _PublicKey) -> None:
    """Take KEY, a client's public key in hexadecimal, off a mixer's or aggregator's list, the file ENROLLED.

    From the next round on its envelopes are dropped. A client gets a new key by being enrolled with it, and
    the old one revoked.
    """
    shuffler.keys.revoke_client(enrolled, shuffler.keys.parse_public_key(key))


def _check_new(file: Path) -> None:
    if file.exists():
        raise FileExistsError(f"{file} exists; a key, or what it has seen, is never overwritten")
    _check_folder(file)


def _check_folder(file: Path) -> None:
    if not file.parent.is_dir():
        raise FileNotFoundError(f"no folder {file.parent} to write {file.name} to: make it first")
