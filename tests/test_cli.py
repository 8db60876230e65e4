import builtins
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shuffle_plugins import __version__, cli
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound

QUESTION = ["-n", "2000", "-k", "200", "-e", "1", "-t", "20", "-d", "1e-5"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


def answer(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_keeps_its_contract(run: Run) -> None:
    found = answer(run, "epsilon", *QUESTION)
    assert list(found) == ["lower", "upper", "neighbouring_relation", "bounds"]
    assert found["neighbouring_relation"] == "replace-one"
    for bound in found["bounds"]:
        assert list(bound) == ["name", "kind", "epsilon", "source"]
        assert bound["kind"] in ("upper", "lower")
    uppers = [bound["epsilon"] for bound in found["bounds"] if bound["kind"] == "upper"]
    lowers = [bound["epsilon"] for bound in found["bounds"] if bound["kind"] == "lower"]
    assert 0 < found["lower"] <= found["upper"]
    assert min(uppers) == found["upper"]
    assert max(lowers) == pytest.approx(found["lower"], rel=1e-9)


def test_epsilon_is_the_accountants(run: Run) -> None:
    accountant = ShuffleAccountant()
    accountant.step(ShuffleRound(local_epsilon=1.0, population=2000, cohort=200), num_steps=20)
    interval = accountant.epsilon(1e-5)
    found = answer(run, "epsilon", *QUESTION)
    assert (found["lower"], found["upper"]) == (interval.lower, interval.upper)


def test_rdp_composition_is_looser(run: Run) -> None:
    pld, rdp = (answer(run, "epsilon", *QUESTION, "--method", method) for method in ("pld", "rdp"))
    assert pld["upper"] < rdp["upper"] < 1.3 * pld["upper"]


def test_a_readable_table_names_every_bound_and_the_relation(run: Run) -> None:
    found = answer(run, "epsilon", *QUESTION)
    code, out, err = run("epsilon", *QUESTION)
    assert (code, err) == (0, "")
    for bound in found["bounds"]:
        assert bound["name"] in out
    for word in ("n = 2,000", "k = 200", "T = 20", "replace-one", "model-observer"):
        assert word in out


def test_shown_bounds_are_rounded_outwards(run: Run) -> None:
    found = answer(run, "epsilon", *QUESTION)
    _, out, _ = run("epsilon", *QUESTION)
    interval = out[out.index("ε ∈ [") + 5 :]
    lower, upper = (float(text) for text in interval[: interval.index("]")].split(", "))
    assert found["lower"] * (1 - 1e-3) < lower <= found["lower"]
    assert found["upper"] <= upper < found["upper"] * (1 + 1e-3)


def test_numbers_may_be_written_in_words_people_use(run: Run) -> None:
    plain = answer(run, "epsilon", *QUESTION)
    for population, cohort in (("2_000", "2e2"), ("2,000", "200.0"), ("2e3", "200")):
        asked = ["-n", population, "-k", cohort, "-e", "1", "-t", "2e1", "-d", "1e-5"]
        assert answer(run, "epsilon", *asked) == plain


def test_sampling_schemes(run: Run) -> None:
    without = answer(run, "epsilon", *QUESTION)
    poisson = answer(run, "epsilon", *QUESTION, "--sampling", "poisson")
    single = answer(run, "epsilon", *QUESTION, "--sampling", "single-pass")
    full = answer(run, "epsilon", "-n", "200", "-e", "1", "-t", "20", "-d", "1e-5", "--sampling", "full")
    server = answer(run, "epsilon", *QUESTION, "--adversary", "server")
    assert poisson["upper"] == pytest.approx(without["upper"], rel=0.05)
    assert single["upper"] == pytest.approx(full["upper"], rel=1e-6)
    assert server["upper"] == pytest.approx(full["upper"], rel=1e-6)
    assert full["upper"] > 3 * without["upper"]


def test_published_bounds_are_left_out_where_they_are_not_stated(run: Run) -> None:
    names = {bound["name"] for bound in answer(run, "epsilon", *QUESTION)["bounds"]}
    poisson = answer(run, "epsilon", *QUESTION, "--sampling", "poisson")
    left = {bound["name"] for bound in poisson["bounds"]}
    assert names - left == {"subsampled shuffle RDP, published"}
    _, out, _ = run("epsilon", *QUESTION, "--sampling", "poisson")
    assert "not for Poisson sampling" in " ".join(out.split())


def test_a_mechanism_has_its_own_bound(run: Run) -> None:
    asked = ["-n", "2000", "-k", "200", "-e", "4", "-t", "20", "-d", "1e-5"]
    generic = answer(run, "epsilon", *asked)
    own = answer(run, "epsilon", *asked, "--mechanism", "privunit", "--dim", "100")
    sign = answer(run, "epsilon", *asked, "--mechanism", "linf-coordinate")
    assert own["upper"] < 0.99 * generic["upper"]
    assert sign["upper"] == pytest.approx(generic["upper"], rel=1e-9)


def test_compare_answers_every_pair_of_rounds_and_local_epsilon(run: Run) -> None:
    asked = ["-n", "2000", "-k", "200", "-d", "1e-5", "-e", "2,1", "-t", "20,1"]
    found = answer(run, "compare", *asked)
    assert [(each["local_epsilon"], each["rounds"]) for each in found] == [(1, 1), (1, 20), (2, 1), (2, 20)]
    single = answer(run, "epsilon", *QUESTION)
    assert {key: found[1][key] for key in single} == single
    code, out, _ = run("compare", *asked)
    assert code == 0
    assert "T = 20" in out
    assert out.count("blanket pair, PLD") == 2


@pytest.mark.parametrize("command", ["epsilon", "compare"])
def test_plot(run: Run, tmp_path: Path, command: str) -> None:
    target = tmp_path / "epsilon.png"
    code, out, err = run(command, *QUESTION, "--plot", str(target))
    assert (code, err) == (0, "")
    assert "blanket pair, PLD" in out
    assert target.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **keywords: Any) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    code, out, err = run("compare", *QUESTION, "--plot", str(tmp_path / "epsilon.png"))
    assert (code, out) == (2, "")
    assert "pip install" in err


@pytest.mark.parametrize(
    ("solve", "known", "step"),
    [
        ("local-epsilon", "-k 200 -t 20", 0.01),
        ("rounds", "-k 200 -e 1", 0.02),
        ("cohort", "-e 1 -t 20", 0.05),
    ],
)
def test_calibrate_comes_close_to_the_target_from_below(
    run: Run, solve: str, known: str, step: float
) -> None:
    asked = ["--target-epsilon", "0.2", "-d", "1e-5", "-n", "2000", *known.split(), "--solve", solve]
    found = answer(run, "calibrate", *asked)
    assert found["solve"] == solve
    assert 0.2 * (1 - step) < found["upper"] <= 0.2
    if solve != "local-epsilon":
        assert found["value"] == int(found["value"])
    options = {"-n": "2000", "-d": "1e-5"} | dict(zip(*[iter(known.split())] * 2, strict=True))
    options[{"local-epsilon": "-e", "rounds": "-t", "cohort": "-k"}[solve]] = str(found["value"])
    again = answer(run, "epsilon", *(part for option in options.items() for part in option))
    assert again["upper"] == found["upper"]
    code, out, _ = run("calibrate", *asked)
    assert code == 0
    assert f"{solve} = " in out


def test_mechanisms(run: Run) -> None:
    listed = answer(run, "mechanisms")
    assert {"binary-rr", "linf-coordinate", "privunit"} <= {each["name"] for each in listed}
    assert all(each["summary"] for each in listed)
    facts = {each["name"]: each for each in answer(run, "mechanisms", "--dim", "1024", "-e", "2")}
    assert facts["linf-coordinate"]["bits"] == 11
    assert facts["linf-coordinate"]["norm"] == "linf"
    assert facts["privunit"]["mean_squared_error_at_zero"] > 1
    assert "dim=1" in facts["binary-rr"]["unavailable"]
    code, out, _ = run("mechanisms", "--dim", "1024", "-e", "2")
    assert code == 0
    assert "bits per report" in out


BAD = [
    "nonsense",
    "epsilon",
    "epsilon -n 10 -e 1 -t 1 -d 1e-5",
    "epsilon -n 10 -k 20 -e 1 -t 1 -d 1e-5",
    "epsilon -n 10 -k 0 -e 1 -t 1 -d 1e-5",
    "epsilon -n 10 -k 2.5 -e 1 -t 1 -d 1e-5",
    "epsilon -n 10.5 -k 2 -e 1 -t 1 -d 1e-5",
    "epsilon -n ten -k 2 -e 1 -t 1 -d 1e-5",
    "epsilon -n 10 -k 5 -e -1 -t 1 -d 1e-5",
    "epsilon -n 10 -k 5 -e 0 -t 1 -d 1e-5",
    "epsilon -n 10 -k 5 -e nan -t 1 -d 1e-5",
    "epsilon -n 10 -k 5 -e 800 -t 1 -d 1e-5",
    "epsilon -n 10 -k 5 -e 1 -t 0 -d 1e-5",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 0",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --sampling never",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --method magic",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --mechanism unheard-of",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --mechanism privunit",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --plot no-such-folder/a.png",
    "compare -n 10 -k 5 -e 1,x -d 1e-5",
    "compare -n 10 -k 5 -e , -d 1e-5",
    "calibrate --target-epsilon 1 -d 1e-5 -n 100",
    "calibrate --target-epsilon 1 -d 1e-5 -n 100 -k 10 -t 5 -e 1",
    "calibrate --target-epsilon 0 -d 1e-5 -n 100 -k 10 -t 5",
    "calibrate --target-epsilon 1 -d 1e-5 -n 100 --solve everything",
    "mechanisms --dim 10",
]


@pytest.mark.parametrize("command", BAD)
def test_bad_input_ends_in_one_line_and_code_2(run: Run, command: str) -> None:
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) > len("error: \n")


def test_the_long_options_are_the_documented_ones(run: Run) -> None:
    documented = "--population 2000 --cohort 200 --local-epsilon 1 --rounds 20 --delta 1e-5"
    sampling = "--sampling without-replacement --mechanism generic"
    assert answer(run, "epsilon", *documented.split(), *sampling.split()) == answer(run, "epsilon", *QUESTION)


def test_no_command_shows_the_help_and_version_the_version(run: Run) -> None:
    _, out, err = run()
    assert "calibrate" in out
    assert err == ""
    assert run("--version") == (0, f"{__version__}\n", "")


def test_an_accounting_question_starts_fast_and_without_torch() -> None:
    script = (
        "import sys; from shuffle_plugins import cli; "
        f"code = cli.main(['epsilon', *{QUESTION!r}, '--json']); "
        "heavy = {'torch', 'scipy.stats', 'matplotlib', 'dp_accounting'} & set(sys.modules); "
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["upper"] > 0


def test_start_up_takes_less_than_1500_ms_of_processor_time() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "shuffle_plugins.cli", "mechanisms"], capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 1.5


def test_a_failing_command_leaves_no_traceback_in_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shuffle_plugins.cli", "epsilon", "-n", "10"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Missing option")
    assert "Traceback" not in done.stderr
