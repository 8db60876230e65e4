"""The conformance checks as a pytest class: each check is a test, and a fault fails its own."""

import textwrap

from shuffle_plugins.testing import CHECKS

pytest_plugins = ("pytester",)


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
