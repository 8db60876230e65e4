"""Where the Triton kernels run."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache

import torch

_TESTED_WORDS = 67


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
    from shuffle_plugins.randomness.chacha import Cursor, Keystream
    from shuffle_plugins.randomness.triton_chacha import keystream_words

    keystream = Keystream(bytes(range(32)), nonce=(1 << 63) + 1)
    start = 8 * (1 << 32) - 11
    try:
        drawn = keystream_words(keystream, start, _TESTED_WORDS, device=torch.device("cuda", index)).cpu()
    except Exception as error:
        return _falls_back(f"Triton kernels do not run on cuda:{index} ({error!r})")
    if not torch.equal(drawn, Cursor(keystream, start=start).words(_TESTED_WORDS)):
        raise RuntimeError(
            f"cuda:{index} fails the self-test of its keystream: nothing was drawn. Use the CPU, and report "
            "the versions of torch, Triton and the driver"
        )
    return True


def _falls_back(reason: str) -> bool:
    warnings.warn(f"{reason}; random words come from the CPU instead, which is slow", stacklevel=4)
    return False
