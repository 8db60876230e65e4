"""Options in messages: what a wrong one probably meant, and which one gives an argument of the library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("eps0", "epsilon0", "e0", "eps-local", "epsilon-local"), ("--local-epsilon",)),
    **dict.fromkeys(("eps", "epsilon"), ("--target-epsilon", "--local-epsilon", "--epsilon")),
    **dict.fromkeys(("clients", "num-clients", "users", "records", "n"), ("--population",)),
    **dict.fromkeys(("batch", "batch-size", "clients-per-round", "k"), ("--cohort",)),
    **dict.fromkeys(("steps", "num-steps", "num-rounds", "iterations", "epochs", "t"), ("--rounds",)),
    **dict.fromkeys(("dimension", "parameters", "num-parameters", "d"), ("--dim",)),
    **dict.fromkeys(("randomizer", "randomiser", "protocol"), ("--mechanism",)),
    **dict.fromkeys(("clip", "clipping-norm", "max-grad-norm", "sensitivity"), ("--radius",)),
    **dict.fromkeys(("delta0",), ("--local-delta",)),
    **dict.fromkeys(("target-delta",), ("--delta",)),
    **dict.fromkeys(("figure", "picture", "output"), ("--plot",)),
}
"""Options of the same meaning, by the names that other tools and papers give it, without their dashes.

Only those of them are named that the command has.
"""


def no_such_option(given: str, *, known: Iterable[str], command: str) -> str:
    """Say that an option does not exist, and which one was probably meant.

    Args:
        given: the option as it was typed.
        known: names of the options that the command has.
        command: how the command is called, for the hint where nothing is near.
    """
    bare = {name.lstrip("-"): name for name in known if name.startswith("--")}
    typed = given.lstrip("-").replace("_", "-").lower()
    meant = [name for name in ELSEWHERE.get(typed, ()) if name in bare.values()]
    meant += [name for rest, name in bare.items() if len(typed) > 1 and rest.startswith(typed)]
    meant = meant or [bare[near] for near in get_close_matches(typed, bare)]
    hint = f"Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""
    return f"No such option {given}. {hint or f'`{command} --help` lists the options.'}"


def with_options(message: str, options: Mapping[str, str]) -> str:
    """A message of the library with options for its arguments' names: ``--rounds``, not ``num_steps``.

    Args:
        message: it may begin with an argument's name; inside it only names with an underscore are replaced.
        options: the command's, by the names of its parameters.
    """
    named = {option.lstrip("-").replace("-", "_"): option for option in options.values()} | dict(options)
    other = {"num_steps": "rounds", "num_trials": "trials"}
    named |= {name: named[ours] for name, ours in other.items() if ours in named}
    return re.sub(r"\A\w+|\b[a-z]+(_[a-z]+)+\b", lambda found: named.get(found[0], found[0]), message)
