"""What an installation without PyTorch says when something needs it."""

from __future__ import annotations

_OF_TORCH = frozenset({"torch", "cryptography", "numba", "tqdm"})


def missing_extra(error: ImportError) -> str | None:
    """What to install after an import failed; None if the module is not one of the extra ``torch``.

    The package alone installs what accounting, planning and most of the command line need. Everything that
    randomises, shuffles or trains needs ``pip install 'shuffle-plugins[torch]'``, which the extras ``opacus``
    and ``flower`` include.
    """
    if error.name not in _OF_TORCH:
        return None
    return f"this needs {error.name}, which is not installed: pip install 'shuffle-plugins[torch]'"
