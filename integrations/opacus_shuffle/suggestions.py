"""What a ``randomizer=`` that is nothing of ours was probably meant to be."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from opacus_shuffle.errors import ShufflePrivacyError
from shuffle_plugins.mechanisms import registry

E = TypeVar("E", bound=StrEnum)


def check_name(name: str, *, sums: Mapping[str, type]) -> None:
    """Refuse a name that neither a sum nor a mechanism has.

    Args:
        name: what the user wrote.
        sums: protocols by their names; the names of their classes are understood too.

    Raises:
        ShufflePrivacyError: it lists the sums, and the closest names, or all if none is close.
    """
    mechanisms = registry.available(*registry.ONE_MESSAGE)
    if name in sums or name in mechanisms:
        return
    spelt = {_bare(known): known for known in (*mechanisms, *sums)}
    spelt |= {_bare(kind.__name__): known for known, kind in sums.items()}
    close = difflib.get_close_matches(_bare(name), spelt, n=3, cutoff=0.7)
    meant = list(dict.fromkeys(spelt[match] for match in close))
    hint = (
        f"did you mean {' or '.join(map(repr, meant))}?"
        if meant
        else f"mechanisms, which take local_epsilon, are {', '.join(mechanisms)}."
    )
    raise ShufflePrivacyError(
        f"no randomizer is named {name!r}; {hint} Sums, which take noise_multiplier, are {', '.join(sums)}"
    )


def refuse_other_forms(randomizer: object, *, sums: Mapping[str, type]) -> None:
    """Refuse a sum that is built already, or a builder of one that takes no noise multiplier.

    Args:
        randomizer: what the user passed, and is not one of the forms that do.
        sums: protocols by their names.

    Raises:
        ShufflePrivacyError: it says what to pass.
    """
    while isinstance(randomizer, functools.partial):
        randomizer = randomizer.func
    owner = getattr(randomizer, "__self__", randomizer)
    for name, kind in sums.items():
        if isinstance(owner, kind) or owner is kind:
            what = "a built sum" if isinstance(owner, kind) else getattr(randomizer, "__qualname__", "it")
            raise ShufflePrivacyError(
                f"{what} will not do as randomizer, since dim and cohort are known only here: pass "
                f"{name!r}, or {kind.__name__}.with_noise (as a functools.partial with further options), "
                "with noise_multiplier; make_private_with_epsilon calibrates it to a target"
            )


def chosen(kind: type[E], value: object, *, name: str) -> E:
    """``value`` as a member of ``kind``.

    Raises:
        ShufflePrivacyError: with the choices, if it is none.
    """
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise ShufflePrivacyError(
            f"{name} must be one of {[member.value for member in kind]}, got {value!r}"
        ) from None


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
