"""Every block of code on every page is run, and prints what the page says, or stands below with its reason.

A new block is found by itself. What its reader has, and what else can be said of what comes out, is in
``page_readers.py`` and ``host_readers.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import host_readers  # noqa: F401
import matplotlib
import page_readers  # noqa: F401
import pytest
import torch
from code_blocks import PAGES, ROOT, Block, blocks_of
from reading import READERS, has

DEPLOYED = (
    "tests/flwr_shuffle/test_deployment.py::"
    "test_the_commands_of_the_examples_readme_deploy_it_and_nothing_is_left"
)
EXTENDING = "tests/testing/test_conformance_extending.py"
RECIPES = "tests/opacus_shuffle/test_opacus_page.py"
APP = "examples/flower-mnist/README.md"
RUN_BY = {
    ("README.md", "examples/opacus_mnist.py"): ".ci/run::main_job",
    ("README.md", "-m pytest"): ".ci/run::tests",
    ("CONTRIBUTING.md", "-m pytest"): ".ci/run::pytest",
    ("docs/guides/extending.md", '"""my_mechanisms.py"""'): f"{EXTENDING}::installed",
    ("docs/guides/extending.md", "in available()"): f"{EXTENDING}::test_it_is_available_by_name",
    (
        "docs/guides/extending.md",
        'randomizer="l1-vertex"',
    ): f"{EXTENDING}::test_opacus_trains_with_it_by_name",
    ("docs/guides/extending.md", "check_mechanism"): f"{EXTENDING}::test_it_conforms",
    ("docs/guides/extending.md", "MechanismConformance"): (
        f"{EXTENDING}::test_its_tests_pass_in_a_process_of_their_own"
    ),
    ("docs/guides/extending.md", '"""gaussian_round.py"""'): (
        "tests/accounting/rounds/test_round_of_your_own.py::page"
    ),
    ("docs/guides/extending.md", "from gaussian_round import"): (
        "tests/accounting/rounds/test_round_of_your_own.py::test_its_state_is_saved_and_read"
    ),
    ("docs/guides/extending.md", '"""my_sums.py"""'): "tests/mechanisms/test_private_sum.py::page",
    ("docs/guides/extending.md", '"""my_host.py"""'): "tests/docs/test_host_of_your_own.py::page",
    ("docs/guides/extending.md", "from my_host import"): (
        "tests/docs/test_host_of_your_own.py::test_the_page_fits_its_line"
    ),
    ("docs/guides/flower.md", "RANDOMIZER"): (
        "tests/examples/test_flower_untuned.py::test_the_printed_program_trains_within_the_target"
    ),
    ("docs/guides/lightning.md", "import lightning"): f"{RECIPES}::test_lightning",
    ("docs/guides/opacus.md", "engine.load_checkpoint"): (
        "tests/opacus_shuffle/test_opacus_page.py::test_the_page_on_resuming_does_what_it_says"
    ),
    ("docs/guides/shuffling.md", "flwr_shuffle.guard"): (
        "tests/flwr_shuffle/test_guard.py::test_the_pages_commands_make_the_program_and_the_list"
    ),
    (APP, "keys mixer"): DEPLOYED,
    (APP, "database superlink.db"): DEPLOYED,
    (APP, "participation=0.75"): DEPLOYED,
    (APP, "keys aggregator"): DEPLOYED,
    (APP, "database sums.db"): DEPLOYED,
    (APP, 'run-config \\\n  "aggregator-public-keys'): DEPLOYED,
}
"""By page and words that are in one block of it alone: what else runs this block, a file and a name in it."""

INSTALLS = "installs packages; CI does so with the README's commands"
MNIST = "takes from minutes to hours and data that are not in the repository; tests/examples runs parts of it"
NOT_RUN = {
    ("docs/README.md", "python3 -m venv"): INSTALLS,
    ("docs/start/flower.md", "python3 -m venv"): INSTALLS,
    ("docs/start/opacus.md", "python3 -m venv"): INSTALLS,
    ("docs/guides/flower.md", "pip install"): INSTALLS,
    ("docs/guides/app.md", "pip install"): "serves until it is stopped; tests/cli/test_cli_app.py starts it",
    (
        "docs/reference/figures.md",
        "figures/make.py",
    ): "takes minutes; tests/examples/test_figures.py runs parts",
    ("docs/reference/frontier.md", "frontier/run.py"): MNIST,
    ("docs/reference/language-model.md", "lora/train.py"): MNIST,
    ("docs/reference/mnist.md", "paper_mnist.py"): MNIST,
    ("docs/reference/mnist.md", "mnist_vector_sum.py"): MNIST,
    ("docs/reference/mnist.md", "mnist_shared_sum.py"): MNIST,
    (APP, "export FLWR"): "sets a variable for the commands below it",
    (APP, "pgrep"): "ends processes of whoever reads the page",
    ("examples/flower-adaped/README.md", "export FLWR"): "sets a variable for the commands below it",
    ("examples/flower-lora/README.md", "export FLWR"): "sets a variable for the commands below it",
    ("examples/flower-lora/README.md", "num-supernodes=300"): "needs a package that CI does not install",
    (
        "examples/flower-lora/README.md",
        "PeftModel",
    ): "needs the adapter of that command; test_lora_app.py loads one",
}
"""By page and words that are in one block of it alone: why nothing runs this block."""

PAGES_OF_SEPARATE_SECTIONS = {
    "docs/guides/flower.md",
    "docs/guides/groups.md",
    "docs/guides/opacus.md",
    "docs/guides/shuffling.md",
}
"""Each of their sections begins anew; other pages are read from the top in one session."""

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def excepted() -> Iterator[tuple[tuple[str, str], list[Block]]]:
    for page, words in (*RUN_BY, *NOT_RUN):
        yield (page, words), [block for block in BLOCKS if block.page == page and words in block.code]


def sessions() -> dict[tuple[str, str, bool], list[Block]]:
    """Blocks that are run together, by the key of their reader."""
    left = {block for _, found in excepted() for block in found}
    together: dict[tuple[str, str, bool], list[Block]] = {}
    for block in BLOCKS:
        if block not in left:
            shell = block.language != "python"
            whole = not shell and block.page not in PAGES_OF_SEPARATE_SECTIONS
            together.setdefault((block.page, "" if whole else block.section, shell), []).append(block)
    return together


SESSIONS = sessions()


def session(key: tuple[str, str, bool]) -> object:
    page, section, shell = key
    name = " - ".join(part for part in (page, section, "shell" if shell else "") if part)
    if key not in READERS:
        has(page, section, shell=shell)
    slow = READERS[key].slow
    return pytest.param(key, id=name, marks=[pytest.mark.slow] if slow else [])


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, no network, and nothing that the tests after it notice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "140")
    matplotlib.use("Agg")
    level = logging.getLogger("flwr").level
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    logging.getLogger("flwr").setLevel(level)


@pytest.mark.parametrize("key", [session(key) for key in SESSIONS])
def test_blocks_run_and_print_what_the_page_says(key: tuple[str, str, bool]) -> None:
    READERS[key].read(SESSIONS[key])


def test_every_exception_is_of_one_block() -> None:
    assert {key: len(found) for key, found in excepted() if len(found) != 1} == {}
    for place in RUN_BY.values():
        file, _, name = place.partition("::")
        assert name in (ROOT / file).read_text(), f"nothing is called {place}"


def test_every_reader_has_something_to_read() -> None:
    assert READERS.keys() - SESSIONS.keys() == set()
