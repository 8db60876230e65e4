import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shuffle_plugins import cli
from shuffle_plugins.shuffler import ShuffleError, SpentTokens, keys

KEY = "ab" * 32


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_private_keys_come_back_from_files_that_only_their_owner_reads(tmp_path: Path) -> None:
    sealing, signing = keys.SealingKey.generate(), keys.SigningKey.generate()
    keys.write_private_key(tmp_path / "sealing", sealing)
    keys.write_private_key(tmp_path / "signing", signing)
    read = keys.read_signing_key(tmp_path / "signing")
    assert keys.public_key_bytes(read) == keys.public_key_bytes(signing)
    for name, key in (("sealing", sealing), ("signing", signing)):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        found = keys.read_private_key(tmp_path / name)
        assert keys.public_key_bytes(found) == keys.public_key_bytes(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_key_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    keys.write_private_key(tmp_path / "key", keys.SigningKey.generate())
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ShuffleError, match="chmod 600"):
        keys.read_signing_key(tmp_path / "key")


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b"-----BEGIN PRIVATE KEY-----\nAA==\n", b"x" * 50_000]
)
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(0o600)
    for read in (keys.read_signing_key, keys.read_service_key, keys.read_private_key):
        with pytest.raises(ShuffleError, match="does not hold"):
            read(tmp_path / "key")


@pytest.mark.parametrize(
    ("read", "good", "wrong"),
    [
        (keys.parse_public_key, KEY, ("", KEY[:-1], f"{KEY}\n", f" {KEY[1:]}", "g" * 64, "٣" * 64, 7)),
        (keys.parse_mixer_public_key, KEY * 2, ("", KEY, f"{KEY * 2}a", f"{KEY} {KEY}", "g" * 128, None)),
        (
            keys.parse_mix_cascade,
            f"{KEY * 2} , {'01' * 64}",
            ([], [KEY * 2, KEY * 2], f"{KEY * 2},{KEY * 2}"),
        ),
    ],
)
def test_public_keys_are_hexadecimal_digits(read: Any, good: str, wrong: tuple[Any, ...]) -> None:
    assert read(good) == read(good.upper())
    for text in wrong:
        with pytest.raises(ShuffleError, match=r"hexadecimal|a key each"):
            read(text)


def test_what_is_not_a_mixers_two_keys_is_refused(tmp_path: Path) -> None:
    for i, key in enumerate((keys.SigningKey.generate(), keys.SealingKey.generate())):
        keys.write_private_key(tmp_path / f"part-{i}", key)
    both = b"".join((tmp_path / f"part-{i}").read_bytes() for i in range(2))
    for name, content in (("swapped", both), ("more", both + both)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(ShuffleError, match="does not hold"):
            keys.read_service_key(tmp_path / name)


def test_an_enrolment_file_is_keys_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "enrolled"
    file.write_text(f"# the clinics\n\n{KEY}  # ward 3\n  {'01' * 32}\n")
    assert keys.read_enrolled(file) == {bytes.fromhex(KEY), b"\x01" * 32}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{KEY}\n{KEY.upper()}\n", "line 2.*already"),
        (f"\n{KEY[:-1]}\n", "line 2.*64 hexadecimal"),
        (f"{KEY} {KEY}\n", "line 1"),
        ("# nobody\n", "names no client"),
        ("", "names no client"),
    ],
)
def test_an_enrolment_file_is_read_strictly(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "enrolled").write_text(text)
    with pytest.raises(ShuffleError, match=said):
        keys.read_enrolled(tmp_path / "enrolled")


def test_enrolling_adds_a_line_once(tmp_path: Path) -> None:
    file = tmp_path / "enrolled"
    file.write_text(KEY)  # without an end of line
    keys.enrol_client(file, b"\x01" * 32, note="ward 3")
    keys.enrol_client(file, b"\x02" * 32)
    assert file.read_text() == f"{KEY}\n{'01' * 32}  # ward 3\n{'02' * 32}\n"
    for key, note in ((b"\x02" * 32, ""), (b"\x03" * 31, ""), (b"\x03" * 32, "two\nlines")):
        with pytest.raises(ShuffleError):
            keys.enrol_client(file, key, note=note)
    assert len(keys.read_enrolled(file)) == 3


def test_a_revoked_key_alone_leaves_the_list_also_behind_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "enrolled", tmp_path / "link"
    file.write_text(f"# wards\n{KEY.upper()}  # ward 1\n{'01' * 32}\n")
    file.chmod(0o640)
    link.symlink_to(file)
    keys.revoke_client(link, bytes.fromhex(KEY))
    assert link.is_symlink()
    assert file.read_text() == f"# wards\n{'01' * 32}\n"
    assert file.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ShuffleError, match="not enrolled"):
        keys.revoke_client(file, bytes.fromhex(KEY))
    assert sorted(os.listdir(tmp_path)) == ["enrolled", "link"]


def test_keys_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> str:
        assert cli.main(["keys", *map(str, arguments)]) == 0
        return capsys.readouterr().out.strip()

    mixer = run("mixer", tmp_path / "mixer.key")
    public = keys.read_service_key(tmp_path / "mixer.key").public
    assert mixer == run("public", tmp_path / "mixer.key") == public.hex()
    assert keys.parse_mixer_public_key(mixer) == public
    SpentTokens(tmp_path / "mixer.key.rounds", public_key=public.sealing)
    client = run("client", tmp_path / "client.key")
    assert client == run("public", tmp_path / "client.key")
    assert run("enrol", tmp_path / "enrolled", client, "--note", "ward 3") == ""
    assert keys.read_enrolled(tmp_path / "enrolled") == {keys.parse_public_key(client)}
    run("enrol", tmp_path / "enrolled", KEY)
    assert run("revoke", tmp_path / "enrolled", client) == ""
    assert keys.read_enrolled(tmp_path / "enrolled") == {bytes.fromhex(KEY)}


def test_the_command_line_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").write_text("precious")
    for arguments in (
        ["mixer", tmp_path / "there"],
        ["client", tmp_path / "there"],
        ["mixer", tmp_path / "new", "--state", tmp_path / "there"],
        ["mixer", tmp_path / "new", "--state", tmp_path / "new"],
        ["public", tmp_path / "none"],
        ["enrol", tmp_path / "there", KEY],
        ["enrol", tmp_path / "new", "abc"],
        ["revoke", tmp_path / "there", KEY],
        ["revoke", tmp_path / "none", KEY],
    ):
        assert cli.main(["keys", *map(str, arguments)]) == 2
        assert capsys.readouterr().err.startswith("error:")
    assert (tmp_path / "there").read_text() == "precious"
    assert os.listdir(tmp_path) == ["there"]
