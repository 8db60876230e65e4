"""What an installation says when something needs a package of an extra that is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import lazy_loader

_EXTRA_OF = {
    **dict.fromkeys(("torch", "cryptography", "numba", "tqdm"), "torch"),
    **dict.fromkeys(("anyio", "jinja2", "starlette", "uvicorn"), "app"),
    "dp_accounting": "dp-accounting",
    "flwr": "flower",
    "matplotlib": "plot",
    "opacus": "opacus",
    **dict.fromkeys(("accelerate", "peft", "transformers"), "transformers"),
}


def missing_extra(error: ImportError, *, extra: str | None = None) -> str | None:
    """What to install after an import failed: ``extra``, or the module's own; None if it is of no extra."""
    own = _EXTRA_OF.get((error.name or "").partition(".")[0])
    if own is None:
        return None
    return f"this needs {error.name}, which is not installed: {how_to_install(extra or own)}"


def how_to_install(extra: str) -> str:
    """The command that installs an extra, from the package index and in a clone."""
    return f"pip install 'shuffle-plugins[{extra}]', or in a clone pip install -e '.[{extra}]'"


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
    package: str, file: str, *, extra: str | None = None, hosts: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are loaded when they are used.

    The stub beside the file lists them; ``extra`` is to be installed if a package is missing. A name that
    only one of the packages ``hosts`` has is an ImportError that says so.
    """
    find, names, listed = lazy_loader.attach_stub(package, file)

    def load(name: str) -> object:
        try:
            with advised(extra):
                return find(name)
        except AttributeError:
            for host in hosts:
                spec = find_spec(host)
                if spec is not None and spec.origin is not None:
                    stub = Path(spec.origin).with_suffix(".pyi").read_text(encoding="utf-8")
                    if f" as {name}\n" in stub:
                        raise ImportError(f"{name} is in {host}: write from {host} import {name}") from None
            raise

    return load, names, listed
