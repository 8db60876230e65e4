"""The conformance checks as a pytest class: each check is a test, and a fault fails its own."""

import subprocess
import sys
import textwrap

import pytest

from shuffle_plugins import testing
from shuffle_plugins.mechanisms import LInfCoordinate, Mechanism, get
from shuffle_plugins.testing import CHECKS, MechanismConformance

pytest_plugins = ("pytester",)


class TestOfVectors(MechanismConformance):
    dims = (3,)
    local_epsilons = (1.5,)

    def build(self, *, local_epsilon: float, dim: int) -> Mechanism:
        return LInfCoordinate(local_epsilon=local_epsilon, dim=dim, radius=0.5)


class TestOfCategories(MechanismConformance):
    dims = (3,)
    local_epsilons = (1.5,)

    def build(self, *, local_epsilon: float, dim: int) -> Mechanism:
        return get("k-rr", local_epsilon=local_epsilon, dim=dim)


def run(pytester, body):
    pytester.makepyfile(
        "from shuffle_plugins.mechanisms import LInfCoordinate\n"
        "from shuffle_plugins.testing import MechanismConformance\n" + textwrap.dedent(body)
    )
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")


def test_a_fault_fails_its_own_test(pytester):
    result = run(
        pytester,
        """
        class Short(LInfCoordinate):
            bits_per_report = 1

        class TestShort(MechanismConformance):
            dims = (3,)
            local_epsilons = (1.5,)
            samples = 2000

            def build(self, *, local_epsilon, dim):
                return Short(local_epsilon=local_epsilon, dim=dim)
        """,
    )
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert sum(outcomes.values()) == len(CHECKS)
    result.stdout.fnmatch_lines(["FAILED*test_conformance?takes its bits on the wire?*"])


def test_build_must_be_defined(pytester):
    result = run(pytester, "class TestNothing(MechanismConformance): pass")
    assert result.parseoutcomes() == {"failed": len(CHECKS)}
    result.stdout.fnmatch_lines(["*define build()*"])


@pytest.mark.slow
def test_pytest_is_imported_only_where_the_class_is():
    program = (
        "import sys, shuffle_plugins.testing as t\n"
        "assert 'pytest' not in sys.modules\n"
        "t.check_mechanism('binary-rr', dims=(1,), checks=['builds'], samples=1000)\n"
        "assert 'pytest' not in sys.modules\n"
        "t.MechanismConformance\n"
        "assert 'pytest' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="Conformance"):
        _ = testing.Conformance
