"""Where the kernels run, and what happens where they do not."""

import importlib.util

import pytest
import torch

from shuffle_plugins.randomness import devices
from shuffle_plugins.randomness.devices import runs_kernels

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


def on_cpu(keystream, start, count, *, device):
    assert device == torch.device("cuda", 0)
    return keystream.words(start, count)


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu"), torch.device("meta")])
def test_only_cuda_devices_run_kernels(device):
    assert not runs_kernels(device)


@needs_triton
def test_a_device_with_the_right_words_passes(self_test):
    assert self_test(on_cpu)


@needs_triton
def test_a_device_with_other_words_is_refused(self_test):
    def wrong(keystream, start, count, *, device):
        words = keystream.words(start, count)
        words[-1] ^= 1 << 40
        return words

    with pytest.raises(RuntimeError, match="fails the self-test"):
        self_test(wrong)


@needs_triton
def test_a_device_that_cannot_compile_is_left_aside(self_test):
    def broken(keystream, start, count, *, device):
        raise OSError("no compiler")

    with pytest.warns(UserWarning, match=r"no compiler.*CPU"):
        assert not self_test(broken)


def test_without_triton_words_come_from_the_cpu(monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"shuffle-plugins\[gpu\]"):
        assert not devices._passes_self_test.__wrapped__(0)
