"""``shuffle-plugins keys``: key pairs of mixers and clients, and the list of clients that a mixer knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Cryptography is imported by the commands that use it: all other commands load this module too.

NewFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="New file for the private key; never overwritten.")
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="FILE", help="New file for spent rounds; FILE.rounds by default."),
]
KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A private key, a mixer's or a client's.")]
EnrolledFile = Annotated[Path, typer.Argument(metavar="ENROLLED", help="The mixer's list; made if need be.")]
PublicKey = Annotated[
    str, typer.Argument(metavar="KEY", help="A client's public key, 64 hexadecimal digits.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Comment to stand beside the key.")]

app = typer.Typer(
    name="keys",
    help="Keys of the mix node and of its clients. What is printed is public; what is written is not.",
)


@app.command("mixer")
def mixer(file: NewFile, state: StateOption = None) -> None:
    """Make a mixer's keys and its file of spent rounds; print the public key that clients and the server pin.

    The two files belong together. Without the second, old rounds could be replayed: if it is lost, make new
    ones and give the new public key to the clients.
    """
    from shuffle_plugins.shuffler import keys
    from shuffle_plugins.shuffler.errors import ShuffleError
    from shuffle_plugins.shuffler.tokens import SpentTokens, state_beside

    key = keys.generate_mixer_key()
    rounds = state or state_beside(file)
    if file.absolute() == rounds.absolute():
        raise ShuffleError("the key and its spent rounds need a file each")
    for path in (file, rounds):
        if path.exists():
            raise FileExistsError(f"{path} exists; a key, or what it has seen, is never overwritten")
    SpentTokens.create(rounds, public_key=key.public.sealing)
    keys.write_private_key(file, key)
    print(key.public.hex())


@app.command("client")
def client(file: NewFile) -> None:
    """Make a client's signing key; print the public key that the mixer enrols."""
    from shuffle_plugins.shuffler import keys

    key = keys.generate_signing_key()
    if file.exists():
        raise FileExistsError(f"{file} exists; a key is never overwritten")
    keys.write_private_key(file, key)
    print(keys.public_key_hex(key))


@app.command("public")
def public(file: KeyFile) -> None:
    """Print the public key that belongs to a private one."""
    from shuffle_plugins.shuffler import keys

    key = keys.read_private_key(file)
    print(key.public.hex() if isinstance(key, keys.MixerKey) else keys.public_key_hex(key))


@app.command("enrol")
def enrol(enrolled: EnrolledFile, key: PublicKey, note: NoteOption = "") -> None:
    """Add a client's public key to a mixer's list. The mix node reads it anew every round."""
    from shuffle_plugins.shuffler import keys

    keys.enrol_client(enrolled, keys.parse_public_key(key), note=note)
