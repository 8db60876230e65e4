"""The keystream against ChaCha20 written out in numpy and the published test vectors; where kernels run."""

import copy
import importlib.util
import pickle
import struct

import numpy as np
import pytest
import torch

from shuffle_plugins.randomness import Keystream, SecureRandomness, SeededRandomness
from shuffle_plugins.randomness import chacha as devices
from shuffle_plugins.randomness.chacha import Cursor, runs_kernels

KEY = bytes(range(32))
CARRY = 1 << 32
"""The block at which the lower half of the counter overflows."""


def quarter_round(x, a, b, c, d):
    for target, other, source, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[target] += x[other]
        x[source] ^= x[target]
        x[source] = (x[source] << np.uint32(bits)) | (x[source] >> np.uint32(32 - bits))


def reference_block(key, counter, nonce):
    """One block, straight from RFC 8439, Section 2.3, with a counter and a nonce of 64 bits each."""
    start = np.frombuffer(
        b"expand 32-byte k" + key + struct.pack("<QQ", counter, nonce), dtype=np.uint32
    ).copy()
    x = start.copy()[:, None]
    for _ in range(10):
        for a in range(4):
            quarter_round(x, a, 4 + a, 8 + a, 12 + a)
        for a in range(4):
            quarter_round(x, a, 4 + (a + 1) % 4, 8 + (a + 2) % 4, 12 + (a + 3) % 4)
    return (x[:, 0] + start).tobytes()


def reference_words(key, start, count, nonce=0):
    blocks = range(start // 8, (start + count + 7) // 8)
    stream = b"".join(reference_block(key, block, nonce) for block in blocks)
    return np.frombuffer(stream, dtype=np.int64)[start % 8 : start % 8 + count].tolist()


def test_the_reference_is_the_published_cipher():
    """RFC 8439, Section 2.3.2: counter 1 and the nonce 00:00:00:09:00:00:00:4a:00:00:00:00."""
    nonce = bytes.fromhex("000000090000004a00000000")
    block = reference_block(
        KEY, struct.unpack("<Q", struct.pack("<I", 1) + nonce[:4])[0], struct.unpack("<Q", nonce[4:])[0]
    )
    assert block[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"
    assert block[48:].hex() == "b5129cd1de164eb9cbd083e8a2503c4e"


@pytest.mark.parametrize("nonce", [0, 7, (1 << 64) - 1])
@pytest.mark.parametrize(
    ("start", "count"), [(0, 40), (3, 1), (7, 2), (8, 8), (8 * CARRY - 11, 30), (8 * CARRY + 5, 9)]
)
def test_words_are_those_of_the_cipher(start, count, nonce):
    expected = reference_words(KEY, start, count, nonce)
    assert Keystream(KEY, nonce).words(start, count).tolist() == expected


def test_a_cursor_passes_the_carry_of_the_counter():
    cursor = Cursor(Keystream(KEY), start=8 * CARRY - 10)
    drawn = [word for count in (7, 6, 9) for word in cursor.words(count).tolist()]
    assert drawn == reference_words(KEY, 8 * CARRY - 10, 22)


def test_coins_are_the_stream_two_bytes_each():
    keystream = Keystream(KEY)
    expected = np.array(reference_words(KEY, 2, 5), dtype=np.int64).view(np.int16)[:18]
    assert keystream.coins(8, 18).tolist() == expected.tolist()
    assert keystream.coins(0, 0).numel() == 0


def test_refinements_come_from_the_next_nonce():
    indices = [0, 1, 3, CARRY + 2]
    expected = [reference_words(KEY, 8 * index, 1, nonce=8)[0] for index in indices]
    assert Keystream(KEY, 7).refinements(torch.tensor(indices)).tolist() == expected


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_keystream_is_not_copied(duplicate):
    with pytest.raises(TypeError, match="repeat its words"):
        duplicate(Keystream(KEY))


def test_a_keystream_does_not_print_its_key():
    assert KEY.hex() not in repr(Keystream(KEY))
    assert repr(KEY) not in repr(Keystream(KEY))


def test_a_source_hands_out_a_keystream_for_four_words():
    source, twin = SeededRandomness(3), SeededRandomness(3)
    keystream = source.keystream()
    assert keystream.key == twin.words(4).numpy().tobytes()
    assert torch.equal(source.words(5), twin.words(5))
    assert SecureRandomness().keystream() != SecureRandomness().keystream()


def test_draws_land_on_the_device_asked_for():
    """Whatever has no kernels gets what the CPU drew."""
    source = SeededRandomness(3)
    meta = torch.device("meta")
    assert source.words(3, device=meta).device == meta
    assert source.words(0, device=meta).device == meta
    assert source.uniform(3, device=meta).device == meta
    assert source.normal(3, device=meta).device == meta
    assert source.words(1, device=torch.device("cpu")).device.type == "cpu"


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.fixture
def self_test(monkeypatch):
    """The self-test of cuda:0 with another maker of words."""

    def run(words):
        from shuffle_plugins.randomness import triton_chacha

        monkeypatch.setattr(triton_chacha, "keystream_words", words)
        return devices._passes_self_test.__wrapped__(0)

    return run


def keystream_of(state):
    key_and_nonce = struct.pack("<10i", *state)
    return Keystream(key_and_nonce[:32], nonce=int.from_bytes(key_and_nonce[32:], "little"))


def on_cpu(state, start, count, *, device):
    assert device == torch.device("cuda", 0)
    return keystream_of(state).words(start, count)


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu"), torch.device("meta")])
def test_only_cuda_devices_run_kernels(device):
    assert not runs_kernels(device)


@needs_triton
def test_a_device_with_the_right_words_passes(self_test):
    assert self_test(on_cpu)


@needs_triton
def test_a_device_with_other_words_is_refused(self_test):
    def wrong(state, start, count, *, device):
        words = keystream_of(state).words(start, count)
        words[-1] ^= 1 << 40
        return words

    with pytest.raises(RuntimeError, match="fails the self-test"):
        self_test(wrong)


@needs_triton
def test_a_device_that_cannot_compile_is_left_aside(self_test):
    def broken(state, start, count, *, device):
        raise OSError("no compiler")

    with pytest.warns(UserWarning, match=r"no compiler.*CPU"):
        assert not self_test(broken)


def test_without_triton_words_come_from_the_cpu(monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"shuffle-plugins\[gpu\]"):
        assert not devices._passes_self_test.__wrapped__(0)
