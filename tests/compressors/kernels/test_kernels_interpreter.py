"""Runs the parity tests where there is no GPU: in Triton's interpreter, in a process of their own.

The interpreter is chosen when Triton is imported, so it must not be chosen in this process.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parity tests run on the GPU")
def test_kernels_in_the_interpreter():
    file = Path(__file__).with_name("test_kernels_parity.py")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-2_000:]
    assert " passed" in ended.stdout
