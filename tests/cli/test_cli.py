import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accounted import accounted
from command_line import CommandLine
from thinning import first_fast

from shuffle_plugins import __version__, cli
from shuffle_plugins.accounting import (
    SampledRecordsRound,
    SeveralReportsRound,
    ShuffleAccountant,
    ShuffleRound,
    comparison,
)
from shuffle_plugins.accounting.calibrate import LARGEST_SEARCHED_LOCAL_EPSILON
from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS, PublishedBound
from shuffle_plugins.cli import commands, output

QUESTION = ["-n", "2000", "-k", "200", "-e", "1", "-t", "20", "-d", "1e-5"]


def test_json_keeps_its_contract(run: CommandLine) -> None:
    found = run.json("epsilon", *QUESTION)
    assert (found["population"], found["cohort"], found["rounds"], found["delta"]) == (2000, 200, 20, 1e-5)
    assert (found["sampling"], found["adversary"]) == ("without-replacement", "model-observer")
    assert (found["mechanism"], found["local_epsilon"], found["local_delta"]) == ("generic", 1.0, 0.0)
    assert {found["upper_bound"], found["lower_bound"]} <= {bound["name"] for bound in found["bounds"]}
    assert found["neighbouring_relation"] == "replace-one"
    for bound in found["bounds"]:
        assert list(bound) == ["name", "kind", "epsilon", "source"]
        assert bound["kind"] in ("upper", "lower")
    uppers = [bound["epsilon"] for bound in found["bounds"] if bound["kind"] == "upper"]
    lowers = [bound["epsilon"] for bound in found["bounds"] if bound["kind"] == "lower"]
    assert min(uppers) == found["upper"]
    assert max(lowers) == pytest.approx(found["lower"], rel=1e-9)
    one = ShuffleRound(local_epsilon=1.0, population=2000, cohort=200, channel_fixed=True)
    interval = accounted(one, num_steps=20).epsilon(1e-5)
    assert (found["lower"], found["upper"]) == (interval.lower, interval.upper)


def test_a_delta_above_one_in_the_population_is_warned_of(run: CommandLine) -> None:
    asked = ["-n", "2000", "-k", "200", "-d"]
    warning = "δ is above 1/population: showing the data of one client, drawn at random, would be allowed"
    for command in (
        "epsilon -e 1 -t 1",
        "compare -e 1 -t 1",
        "calibrate --target-epsilon 1 -t 1",
        "plan --target-epsilon 1 -t 1 --dim 2 --mechanism l2-block",
        "plan --target-epsilon 1 -t 1 --dim 2 --mechanism vector-sum",
        "recipe --target-epsilon 1 -t 1 --dim 2 --mechanism privunit",
    ):
        code, out, err = run(*command.split(), *asked, "0.001")
        assert (code, "Warning" in out) == (0, False)
        assert f"Warning: {warning}\n" in err
        code, out, err = run(*command.split(), *asked, "0.001", "--json")
        found = json.loads(out)
        assert warning in (found[0] if isinstance(found, list) else found)["warnings"]
        assert f"Warning: {warning}\n" in err
    assert "δ is above" not in "".join(run("epsilon", "-e", "1", "-t", "1", *asked, "0.0005")[1:])


def test_shown_bounds_are_rounded_outwards(run: CommandLine) -> None:
    found = run.json("epsilon", *QUESTION)
    _, out, _ = run("epsilon", *QUESTION)
    interval = out[out.index("ε ∈ [") + 5 :]
    lower, upper = (float(text) for text in interval[: interval.index("]")].split(", "))
    assert found["lower"] * (1 - 1e-3) < lower <= found["lower"]
    assert found["upper"] <= upper < found["upper"] * (1 + 1e-3)


@first_fast(
    ("arguments", "code", "told"),
    [
        (["epsilon", *QUESTION, "-d", "1e-3"], 0, ("ε ∈ [", "Warning: δ")),
        (["--help"], 0, ("certified ε",)),
        (["epsilon", *QUESTION, "-k", "∞"], 2, ("'∞' is not a number",)),
    ],
)
def test_what_is_printed_is_utf_8_whatever_a_pipe_would_have(
    arguments: list[str], code: int, told: tuple[str, ...]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "shuffle_plugins", *arguments],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True,
    )
    assert ran.returncode == code
    printed = (ran.stdout + ran.stderr).decode("utf-8")
    assert all(text in printed for text in told)


@pytest.mark.slow
def test_compare_answers_every_pair_of_rounds_and_local_epsilon(run: CommandLine) -> None:
    asked = ["-n", "2000", "-k", "200", "-d", "1e-5", "-e", "2,1", "-t", "20,1"]
    found = run.json("compare", *asked)
    assert [(each["local_epsilon"], each["rounds"]) for each in found] == [(1, 1), (1, 20), (2, 1), (2, 20)]
    single = run.json("epsilon", *QUESTION, "--all")
    assert {key: found[1][key] for key in single} == single
    out = run.text("compare", *asked)
    assert "T=20" in out
    assert out.count("crowd pair, PLD") == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["epsilon", "compare"])
def test_plot(run: CommandLine, tmp_path: Path, command: str) -> None:
    target = tmp_path / "epsilon.png"
    out = run.text(command, *QUESTION, "--plot", str(target))
    assert "crowd pair, PLD" in out
    assert f"Picture written to {target}\n" in out
    assert target.read_bytes().startswith(b"\x89PNG")
    code, out, err = run(command, *QUESTION, "--plot", str(target), "--json")
    assert (code, err) == (0, f"Picture written to {target}\n")
    assert json.loads(out)


def test_plot_without_matplotlib_says_what_to_install(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'shuffle-plugins[plot]'" in run.refused(
        "compare", *QUESTION, "--plot", str(tmp_path / "epsilon.png")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solve", "known", "step"),
    [
        ("local-epsilon", "-k 200 -t 20", 0.01),
        ("rounds", "-k 200 -e 1", 0.02),
        ("cohort", "-e 1 -t 20", 0.05),
    ],
)
def test_calibrate_comes_close_to_the_target_from_below(
    run: CommandLine, solve: str, known: str, step: float
) -> None:
    asked = ["--target-epsilon", "0.2", "-d", "1e-5", "-n", "2000", *known.split(), "--solve", solve]
    found = run.json("calibrate", *asked)
    assert found["solve"] == solve
    assert 0.2 * (1 - step) < found["upper"] <= 0.2
    if solve != "local-epsilon":
        assert found["value"] == int(found["value"])
    options = {"-n": "2000", "-d": "1e-5"} | dict(zip(*[iter(known.split())] * 2, strict=True))
    options[{"local-epsilon": "-e", "rounds": "-t", "cohort": "-k"}[solve]] = str(found["value"])
    again = run.json("epsilon", *(part for option in options.items() for part in option))
    assert again["upper"] == found["upper"]
    out = run.text("calibrate", *asked)
    assert f"{solve} = " in out


def test_calibrate_says_when_it_answers_with_its_own_cap(run: CommandLine) -> None:
    common = ["-n", "2000", "-d", "1e-5", "-k", "20", "-t", "1", "--target-epsilon", "19"]
    remark = "ε0 = 20 is the solver's cap"
    code, out, err = run("calibrate", *common)
    assert (code, remark in out, remark in err) == (0, False, True)
    code, out, err = run("calibrate", *common, "--json")
    assert code == 0
    assert [text.startswith(remark) for text in json.loads(out)["warnings"]] == [True]
    assert json.loads(out)["value"] == LARGEST_SEARCHED_LOCAL_EPSILON


def test_mechanisms_compare_on_one_question(run: CommandLine) -> None:
    asked = ["mechanisms", "--dim", "1024", "-e", "2"]
    own = {each["name"]: each for each in run.json(*asked)}
    assert own["linf-coordinate"]["bits"] == 11
    assert own["linf-coordinate"]["domain"] == "linf"
    assert own["privunit"]["variance"] > 1
    assert own["k-rr"]["domain"] == "categories"
    assert "dim=1" in own["binary-rr"]["reason"]
    found = run.json(*asked, "--norm", "l2", "--radius", "0.5")
    facts = {each["name"]: each for each in found if "variance" in each}
    assert facts["privunit"]["variance"] == pytest.approx(own["privunit"]["variance"] / 4)
    assert facts["linf-coordinate"]["radius"] == 0.5
    errors = [float(f"{each['variance']:.9g}") for each in found if "variance" in each]
    assert errors == sorted(errors)
    assert all(each["seconds"] is None for each in facts.values())
    assert "k-rr" not in facts
    out = run.text(*asked, "--norm", "categories")
    assert "mean squared error" in out
    assert ", privunit, " in out
    assert out.count(": takes vectors, not categories.") == 1
    assert "gaussian (δ0 = 1e-06)" in run(*asked, "--norm", "l2")[1]
    for bad in (["-e", "0"], ["-e", "nan"], ["-e", "1000"]):
        assert "--local-epsilon" in run.refused("mechanisms", "--dim", "10", *bad)


PLANNED = ["-n", "300", "--target-epsilon", "0.5", "-d", "1e-5", "--dim", "8", "-t", "4,1", "-k", "30,300"]
PLANNED += ["--mechanism", "linf-block"]


@pytest.mark.slow
def test_plan_keeps_its_contract(run: CommandLine) -> None:
    found = run.json("plan", *PLANNED)
    assert found["neighbouring_relation"] == "replace-one"
    assert found["norm"] == "linf"
    assert found["spread"] == pytest.approx(8**0.5)
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert 0 < row["lower"] <= row["upper"] <= 0.5
    assert found["best"] == min(found["rows"], key=lambda row: row["average_mse"])
    assert (found["best"]["cohort"], found["best"]["rounds"]) == (300, 4)
    for baseline in found["baselines"]:
        assert list(baseline) == ["name", "average_mse", "cohort", "rounds", "local_epsilon"]
    row = found["rows"][0]
    asked = ["-n", "300", "-k", str(row["cohort"]), "-e", str(row["local_epsilon"]), "-t", str(row["rounds"])]
    again = run.json("epsilon", *asked, "-d", "1e-5", "--mechanism", "linf-block", "--dim", "8")
    assert (again["lower"], again["upper"]) == (row["lower"], row["upper"])


SUMMED = ["plan", "-n", "2000", "--target-epsilon", "1", "-d", "1e-6", "--dim", "8", "-t", "20"]
SUMMED += ["-k", "100,2000", "--mechanism", "vector-sum", "--adversary", "server"]


@pytest.mark.slow
def test_a_plan_of_a_sum_compares_who_draws(run: CommandLine) -> None:
    found = run.json(*SUMMED)
    assert found["mechanism"] == "vector-sum"
    assert [(row["drawn_by"], row["cohort"]) for row in found["rows"]] == [
        ("server", 100),
        ("clients", 100),
        ("in turn", 100),
        ("nobody", 2000),
    ]
    drawn, secret, *_ = found["rows"]
    assert drawn["charged_rounds"] < secret["charged_rounds"] == drawn["rounds"] == 20
    assert secret["noise_multiplier"] < drawn["noise_multiplier"] / 3
    for row in found["rows"]:
        assert 0 < row["lower"] <= row["upper"] <= 1
        assert row["lower_bound"] == "binomial instance"


@pytest.mark.slow
def test_a_plan_among_mechanisms_says_which_were_left_out(run: CommandLine) -> None:
    asked = ["plan", "-n", "100", "--target-epsilon", "1", "-d", "1e-5", "--dim", "3", "-t", "1", "-k", "100"]
    out = run.text(*asked)
    assert "Left out: binary-rr: " in out
    assert "Left out: hadamard-response, k-rr, " in out  # one line for all of one reason
    assert "shuffle-plugins recipe" not in out
    alone = ["--dim", "1", "-k", "4", "--mechanism", "binary-rr"]
    searched = run("plan", "-n", "4", "--target-epsilon", "0.1", "-d", "0.1", *alone)[1]
    assert "To train a model, ask `shuffle-plugins recipe`" in searched
    chosen = run.json(*asked)["best"]["mechanism"]
    assert out.startswith(f"{chosen}: k = 100")


_RUN = "-n 2000 -d 1e-5"
REFUSED = {
    # an option that would change nothing
    "epsilon -n 9 -k 3 -e 1 -t 1 -d 1e-5 --dim 5": "generic takes no --dim",
    "bandit --actions 5 -t 999 --model local -e 1 --bound published": "leave out --bound",
    "round-costs --clients 10": "give --dim for a shared sum",
    f"{' '.join(SUMMED)} --method rdp": "leave out --sampling, --method and --plot",
    # a mechanism that the command does not take
    f"epsilon {_RUN} -k 200 -t 20 -e 1 --mechanism vector-sum": 'sp.get("vector-sum", dim=…, cohort=…',
    f"calibrate {_RUN} -k 200 -t 20 --target-epsilon 1 --mechanism x": "no mechanism named 'x'; available: b",
    # a wrong name, answered by the right one
    "epsilon --epsilon0=2": "Did you mean --local-epsilon?\n",
    "budget --zzz": " budget --help` lists the options.\n",
    "plna": "Did you mean 'plan'?\n",
    # values
    "plan -n 300 --target-epsilon 1e-9 -d 1e-15 --dim 8 -t 1000 -k 300 --mechanism linf-coordinate": "fewer",
    "epsilon -n 10 -k 20 -e 1 -t 1 -d 1e-5": "--cohort",
    "epsilon -n ten -k 2 -e 1 -t 1 -d 1e-5": "'ten' is not a",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --mechanism privunit": "--dim is needed",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --plot no-such-folder/a.png": "no-such-folder",
    "epsilon -n 10 -k 5 -e 1 -t 1 -d 1e-5 --local-delta 1e-9 --mechanism binary-rr": "--mechanism generic",
    "epsilon -k 5 -e 1 -t 1 -d 1e-5": "give --population, or a --group for each",
    "epsilon --group 1 -k 5 -t 1 -d 1e-5": "--group 1 is not an ε0 and a number of clients",
    "epsilon --group 1:10 -e 1 -k 5 -t 1 -d 1e-5": "leave out --local-epsilon",
    "epsilon --group 1:10 --group 2:20 -k 5 -t 1 -d 1e-5": "give a --cohort that the groups share evenly",
    "compare -n 10 -k 5 -e , -d 1e-5": "at least one",
    f"bandit --actions {__file__} -t 1e5 -e 0.5 -d 1e-6": "one row of numbers per action",
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_ends_in_one_line_and_code_2(run: CommandLine, command: str) -> None:
    err = run.refused(*command.split())
    assert REFUSED[command] in err
    assert err.count("Did you mean") <= 1
    # a word of the accountant that nobody needs here
    assert "blanket" not in err.replace("blanket-mixed-gaussian", "")


def test_usual_names_elsewhere_point_at_options_that_exist() -> None:
    source = "".join(each.read_text() for each in Path(cli.__file__).parent.glob("*.py"))
    table = re.search(r"^ELSEWHERE.*?^}", source, re.MULTILINE | re.DOTALL)
    assert table
    options = set(re.findall(r'"(--[a-z-]+)["/ ]', source.replace(table[0], "")))
    assert {name for names in commands.ELSEWHERE.values() for name in names} <= options
    with_another_meaning = {"--clients", "--epsilon", "--output", "--protocol"}  # options of some commands
    assert {f"--{name}" for name in commands.ELSEWHERE} & options <= with_another_meaning


def test_a_terminal_is_told_after_a_while_that_a_command_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PATIENCE", 0.01)
    output.working.begin()
    time.sleep(0.1)
    output.remark("answer")
    assert capsys.readouterr() == ("answer\n", "")  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    output.working.begin()
    time.sleep(0.1)
    output.remark("answer")
    said = capsys.readouterr()
    assert said.out == "answer\n"
    assert "working …" in said.err


def test_no_command_shows_the_help_and_version_the_version(run: CommandLine) -> None:
    code, out, err = run()
    assert "calibrate" in out
    assert (code, err) == (2, "")
    assert run("--version") == (0, f"{__version__}\n", "")


SLOW = ["numba", "scipy.stats", "scipy.optimize", "scipy.fft", "matplotlib", "cryptography", "dp_accounting"]
SECRET = ["--sampling", "poisson", "--adversary", "server"]
BANDIT = ["--actions", "20", "--horizon", "1e5", "-e", "0.5", "-d", "1e-6", "--mechanism", "binary-rr"]


@first_fast(
    ("arguments", "unneeded"),
    [
        (["epsilon", *QUESTION], ["torch", *SLOW]),
        (["mechanisms", "--json"], ["torch", "scipy", "numpy"]),
        (["epsilon", *QUESTION, *SECRET], ["torch", *SLOW]),
        (["--version"], ["torch", "scipy", "numpy"]),
        (["--help"], ["torch", "scipy", "numpy"]),
        (["epsilon", "--help"], ["torch", "scipy", "numpy"]),
        (["bandit", *BANDIT], ["torch"]),
    ],
    fast=2,
)
def test_a_command_loads_nothing_that_it_does_not_need(arguments: list[str], unneeded: list[str]) -> None:
    script = (
        "import sys; from shuffle_plugins import cli; "
        f"code = cli.main({arguments!r}); "
        f"print(sorted(set({unneeded!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_few_published_bounds_are_computed_and_all_on_request(run, monkeypatch) -> None:
    asked = []

    epsilon = PublishedBound.epsilon

    def counted(self, **question):
        asked.append(self.name)
        return epsilon(self, **question)

    monkeypatch.setattr(PublishedBound, "epsilon", counted)
    _, short, _ = run("epsilon", *QUESTION)
    assert sorted(asked) == sorted(comparison.FEW_PUBLISHED)
    assert f"{len(comparison.ALL_PUBLISHED) - len(asked)} more published bounds: --all shows them" in short
    few = run.json("epsilon", *QUESTION)
    asked.clear()
    _, long, _ = run("epsilon", *QUESTION, "--all")
    invalid = {bound.name for bound in PUBLISHED_BOUNDS if not bound.valid}
    assert set(comparison.ALL_PUBLISHED) - set(asked) == invalid
    assert "--all" not in long
    assert len(long.splitlines()) > len(short.splitlines()) + 5
    every = run.json("epsilon", *QUESTION, "--all")
    left = [bound for bound in every["bounds"] if bound["name"] not in comparison.ALL_PUBLISHED]
    assert [b for b in every["bounds"] if b in left or b["name"] in comparison.FEW_PUBLISHED] == few["bounds"]
    assert few | {"bounds": every["bounds"]} == every


@pytest.mark.slow
def test_an_audit_compares_what_is_attained_with_what_is_claimed(run) -> None:
    asked = ("--mechanism", "binary-rr", "-e", "2", "--trials", "3000", "--confidence", "0.9999999")
    # Four clients at ε0 = 2: the attack proves some 1.8, so that chance does not take it to 0.
    found = run.json("audit", *asked, "-n", "4", "-k", "4", "-d", "0.01")
    assert [entry["what"] for entry in found] == ["one report", "shuffled rounds"]
    for entry in found:
        assert 0 < entry["attained_epsilon"] <= entry["claimed_epsilon"]
        assert not entry["refuted"]
        assert entry["neighbouring_relation"] == "replace-one"
    out = run.text("audit", *asked)
    assert "consistent with it" in out


def test_clients_with_several_records_are_asked_about(run: CommandLine) -> None:
    asked = [*QUESTION, "--records-per-client", "20", "--samples-per-client", "2"]
    found = run.json("epsilon", *asked)
    assert (found["records_per_client"], found["samples_per_client"]) == (20, 2)
    accountant = ShuffleAccountant()
    clients = ShuffleRound(local_epsilon=1.0, population=2000, cohort=200, channel_fixed=True)
    accountant.step(
        SampledRecordsRound.of(clients, records_per_client=20, samples_per_client=2), num_steps=20
    )
    assert found["upper"] == accountant.epsilon(1e-5).upper < run.json("epsilon", *QUESTION)["upper"] / 5
    out = run.text("epsilon", *asked)
    assert "replace-one record neighbours" in out
    assert "2 of 20 records" in " ".join(out.split())
    assert (
        found["epsilon_of_a_client"]
        == accounted(SeveralReportsRound.of(clients, reports_per_client=2), num_steps=20).epsilon(1e-5).upper
        > found["upper"]
    )
    assert "all records of a client: ε ≤" in " ".join(out.split())
    [compared] = run.json("compare", *asked)
    assert compared["upper"] == found["upper"]
    one = run.json("epsilon", *QUESTION, "--records-per-client", "20")
    assert one["epsilon_of_a_client"] == run.json("epsilon", *QUESTION)["upper"]
    assert "--samples-per-client must be at most --records-per-client" in run.refused(
        "epsilon", *QUESTION, "--records-per-client", "2", "--samples-per-client", "3"
    )


@pytest.mark.slow
def test_a_recipe_is_printed_with_reasons_and_as_json(run: CommandLine) -> None:
    asked = ["recipe", "-n", "2000", "--target-epsilon", "2", "-d", "1e-5", "--dim", "60", "-t", "20"]
    found = run.json(*asked)
    assert (found["cohort"], found["num_steps"], found["mechanism"]) == (
        200,
        20,
        "blanket-mixed-gaussian-seed",
    )
    assert found["epsilon"]["upper"] <= 2
    assert found["warnings"] == []
    out = run.text(*asked, "--model", "network")
    for setting in found["settings"]:
        assert setting["name"] in out
    assert "moves each weight by 0.1" in " ".join(out.split())
    assert "vector-sum has less noise" in " ".join(out.split())  # a hint that sums are more accurate
    assert "no recipe for 'linf-block'" in run.refused(*asked, "--mechanism", "linf-block", "--dim", "8")


def test_a_central_run_has_its_relation_and_its_noise_over_the_clipping_norm(run: CommandLine) -> None:
    asked = ("central", "-n", "1000", "-k", "100", "-t", "100", "-d", "1e-6", "--noise-multiplier")
    added = run.json(*asked, "1", "--sampling", "poisson", "--neighbours", "add-or-remove-one")
    assert (added["neighbouring_relation"], added["trusted"]) == ("add-or-remove-one", "server")
    assert 8.05 < added["lower"] <= added["upper"] < 8.06  # as by dp_accounting
    replaced = run.json(*asked, "2")  # two norms apart
    assert 8.05 < replaced["lower"] <= replaced["upper"] < 8.83
    assert "--neighbours add-or-remove-one needs --sampling poisson" in run.refused(
        *asked, "2", "--neighbours", "add-or-remove-one"
    )
    out = run.text(*asked, "2")
    assert "n = 1,000 · k = 100 (without-replacement) · noise multiplier = 2 · T = 100" in out
    _, told, _ = run("central", "--help")
    for refused in ("epoch", "check-in", "single-pass", "shuffled"):
        assert refused not in told


def test_groups_of_clients_get_an_epsilon_each(run: CommandLine) -> None:
    of_both = ("--rounds", 10, "--delta", 1e-5)
    asked = ("epsilon", "--group", "1:500", "--group", "3:500", "--cohort", 200, *of_both)
    own = (*asked, "--mechanism", "k-rr", "--dim", 4)
    found = run.json(*own)
    quiet, loud = found["groups"]
    assert (quiet["local_epsilon"], quiet["population"], quiet["cohort"]) == (1, 500, 100)
    for each in (quiet, loud):
        assert each["one_encoding"]["upper"] < each["labelled"]["upper"]
    assert quiet["one_encoding"]["upper"] < loud["one_encoding"]["upper"]
    # Before the server all of those who report do, and nobody else hides them.
    server = run.json(*own, "--adversary", "server")["groups"][0]
    assert server["one_encoding"]["upper"] > quiet["one_encoding"]["upper"]
    out = run.text(*asked)
    assert "only a member's own group hides it" in out
    alone = run.json("epsilon", "-n", 500, "-k", 100, "-e", 3, *of_both)
    assert run.json(*asked)["groups"][1]["labelled"]["upper"] == alone["upper"]
