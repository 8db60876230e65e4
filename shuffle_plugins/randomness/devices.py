"""Finds out on which devices the Triton kernels run, and tests them there."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import warnings
from functools import cache

from shuffle_plugins.core.lazy_torch import torch

# The self-test draws words of ChaCha20 under the key 0, 1, …, 31 and the nonce 2**63 + 1, from the end of
# a block on, across the carry of the counter's lower half, and compares their SHA-256.
_TESTED_STATE = (*struct.unpack("<8i", bytes(range(32))), 1, -(1 << 31))
_TESTED_START, _TESTED_WORDS = 8 * (1 << 32) - 11, 67
_TESTED_DIGEST = "a7a45a9acc6b8e328405cf3c34ea53f2eacc1be658712e57aaf3f4365aa63993"


def runs_kernels(device: torch.device | str) -> bool:
    """Whether the Triton kernels work on a device: a CUDA device, with Triton, that passes its self-test.

    Elsewhere the torch path does the same work. A device on which Triton is missing or cannot compile is
    told once, by a warning.

    Raises:
        RuntimeError: if the device makes other words than the CPU: its randomness would protect nobody.
    """
    if device == "cpu" or (device := torch.device(device)).type != "cuda":
        return False
    return _passes_self_test(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _passes_self_test(index: int) -> bool:
    if importlib.util.find_spec("triton") is None:
        return _falls_back("Triton is not installed: pip install 'shuffle-plugins[gpu]'")
    from shuffle_plugins.randomness.triton_chacha import keystream_words

    device = torch.device("cuda", index)
    try:
        drawn = keystream_words(_TESTED_STATE, _TESTED_START, _TESTED_WORDS, device=device).cpu()
    except Exception as error:
        return _falls_back(f"Triton kernels do not run on cuda:{index} ({error!r})")
    if hashlib.sha256(drawn.numpy().tobytes()).hexdigest() != _TESTED_DIGEST:
        raise RuntimeError(
            f"cuda:{index} fails the self-test of its keystream: nothing was drawn. Use the CPU, and report "
            "the versions of torch, Triton and the driver"
        )
    return True


def _falls_back(reason: str) -> bool:
    warnings.warn(f"{reason}; random words come from the CPU instead, which is slow", stacklevel=4)
    return False
