"""What an installation says when something needs a package of an extra that is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lazy_loader

_EXTRA_OF = {
    **dict.fromkeys(("torch", "cryptography", "numba", "tqdm"), "torch"),
    **dict.fromkeys(("anyio", "jinja2", "starlette", "uvicorn"), "app"),
    "dp_accounting": "dp-accounting",
    "flwr": "flower",
    "matplotlib": "plot",
    "opacus": "opacus",
}


def missing_extra(error: ImportError, *, extra: str | None = None) -> str | None:
    """What to install after an import failed; None if the module is not one of an extra.

    The package alone installs what accounting, planning and most of the command line need. Everything that
    randomises, shuffles or trains needs ``pip install 'shuffle-plugins[torch]'``, which the extras ``opacus``
    and ``flower`` include.

    Args:
        error: of the import.
        extra: the extra to name instead of the module's own.
    """
    own = _EXTRA_OF.get((error.name or "").partition(".")[0])
    if own is None:
        return None
    return f"this needs {error.name}, which is not installed: pip install 'shuffle-plugins[{extra or own}]'"


@contextmanager
def advised(extra: str | None = None) -> Iterator[None]:
    """Imports whose failure says what to install, as :func:`missing_extra` does."""
    try:
        yield
    except ModuleNotFoundError as error:
        if advice := missing_extra(error, extra=extra):
            raise ModuleNotFoundError(advice, name=error.name) from None
        raise


def face(
    package: str, file: str, *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are loaded when they are used.

    Args:
        package: its ``__name__``.
        file: its ``__file__``, beside which the stub lists the names.
        extra: what to install if a name needs a package that is not there; the missing package's own unless
            given.
    """
    find, names, listed = lazy_loader.attach_stub(package, file)

    def load(name: str) -> object:
        with advised(extra):
            return find(name)

    return load, names, listed
