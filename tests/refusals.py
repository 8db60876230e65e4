"""Why a shuffler or an aggregator refuses a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shuffle_plugins.shuffler import BatchRefused, Refusal


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refusal:
    """The code with which a call is refused."""
    with pytest.raises(BatchRefused) as error:
        call(*args, **kwargs)
    return error.value.code
