"""Where the kernels run, and what happens where they do not."""

import importlib.util
import struct

import pytest
import torch

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.randomness import chacha as devices
from shuffle_plugins.randomness.chacha import runs_kernels

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
