"""What a release and the artifact need: versions that agree, and commands that are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from example_scripts import script
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "artifact/requirements.lock").read_text(encoding="utf-8")


def test_the_lock_has_a_version_within_every_bound_and_hashes_alone() -> None:
    pinned = {
        canonicalize_name(name): Version(version)
        for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.M)
    }
    assert len(pinned) > 150
    assert len(re.findall(r"^ {4}--hash=sha256:[0-9a-f]{64}( \\)?$", LOCK, re.M)) > len(pinned)
    assert not re.search(r"://|^-", LOCK, re.M)  # of no index
    extras = PROJECT["optional-dependencies"]
    asked = [
        *PROJECT["dependencies"],
        *(each for extra in ("torch", "opacus", "transformers", "flower", "dev") for each in extras[extra]),
    ]
    for text in asked:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name not in ("torch", "shuffle-plugins"):
            assert pinned[name] in wanted.specifier, text


def test_readme_and_artifact_take_the_same_pytorch() -> None:
    found = [
        set(re.findall(r"torch==([\d.]+)", (ROOT / page).read_text(encoding="utf-8")))
        for page in ("README.md", "ARTIFACT-APPENDIX.md", "artifact/Dockerfile")
    ]
    assert len(found[0]) == 1
    assert found[0] == found[1] == found[2]


def test_the_appendix_installs_as_the_dockerfile_does() -> None:
    page = (ROOT / "ARTIFACT-APPENDIX.md").read_text(encoding="utf-8")
    commands = re.findall(r"^RUN (pip install .*)$", (ROOT / "artifact/Dockerfile").read_text(), re.M)
    assert len(commands) == 3
    for command in commands:
        assert f"`{command.partition(' ${')[0]}`" in page


def test_every_claim_has_run_and_what_it_runs_is_there() -> None:
    claims = script("artifact/claims.py")
    times = json.loads(claims.TIMES.read_text(encoding="utf-8"))
    assert times.keys() == {claim.name for claim in claims.CLAIMS}
    for claim in claims.CLAIMS:
        assert times[claim.name]["held"]
        paths = [word for word in claim.command.split() if "/" in word]
        assert all((ROOT / path).exists() for path in [*paths, claim.page.partition("#")[0]])


def test_the_workflow_asks_for_sets_that_there_are_and_from_the_oldest_python_on() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["versions"]["strategy"]["matrix"]
    sets = {*matrix["set"], *(each["set"] for each in matrix["include"])}
    source = (ROOT / "benchmarks/versions.py").read_text(encoding="utf-8")
    assert len(sets) == 4
    assert all(f'"{each}"' in source for each in sets)
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"
    classified = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    assert classified <= set(matrix["python"])
    ran = " ".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    for path in (".ci/run", "benchmarks/versions.py", "artifact/Dockerfile", "artifact/packages"):
        assert path in ran
        assert (ROOT / path).exists()


@pytest.mark.skipif(".invalid" not in PROJECT["urls"]["Repository"], reason="has its addresses")
@pytest.mark.parametrize(
    ("tag", "said"), [("v9.9.9", "is not that of version"), (f"v{PROJECT['version']}", "placeholders")]
)
def test_packages_of_a_tag_are_refused_before_anything_is_built(tag: str, said: str) -> None:
    variables = os.environ | {"PYTHON": sys.executable}
    ran = subprocess.run([ROOT / "artifact/packages", tag], env=variables, capture_output=True, text=True)
    assert ran.returncode == 1
    assert said in ran.stderr
