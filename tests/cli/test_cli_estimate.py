"""``shuffle-plugins estimate``: what it prints is the protocols' own, and bad files end in one sentence."""

import csv
import math
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from accounted import accounted
from command_line import CommandLine
from thinning import first_fast

from shuffle_plugins.accounting import ShuffleRound
from shuffle_plugins.mechanisms import KeyLaw, MultilevelHadamard, UserLevelMean

COLOURS = ["red", "green", "blue", "black"]
TARGET = ["--epsilon", "1", "--delta", "1e-6"]
LISTED = ["--categories", ",".join(COLOURS)]


@pytest.fixture
def run(run: CommandLine) -> CommandLine:
    return replace(run, command=("estimate",))


@pytest.fixture
def values(tmp_path: Path) -> tuple[Path, list[str]]:
    held = random.Random(1).choices(COLOURS, [50, 30, 15, 5], k=3000)
    path = tmp_path / "values.txt"
    path.write_text("\n".join(held) + "\n")
    return path, held


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """1,000 users of four samples about (0.3, -0.2) each, in any order."""
    source = random.Random(2)
    rows = [(f"u{user}", source.gauss(0.3, 0.1), source.gauss(-0.2, 0.1)) for user in range(1000)] * 4
    source.shuffle(rows)
    path = tmp_path / "histories.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as text:
        csv.writer(text).writerows([("user", "x", "y"), *rows])
    return path


@first_fast(
    "protocol",
    ["decoy-histogram", "laplace-histogram", "counted-unary", "histogram-sum", "one-message"],
    fast=2,
)
def test_frequencies_stay_within_epsilon_and_their_bars_hold_the_truth(run, values, protocol) -> None:
    path, held = values
    asked = ["frequencies", "--input", path, *TARGET, *LISTED, "--protocol", protocol]
    found = run.json(*asked, "--confidence", 1 - 1e-9)
    assert 0.6 < found["lower"] <= found["upper"] <= 1
    assert found["upper"] > 0.9
    assert (found["clients"], found["delta"]) == (3000, 1e-6)
    assert found["neighbouring_relation"] == "replace-one"
    assert (found["local_epsilon"] is None) is (protocol not in ("counted-unary", "one-message"))
    assert [row["category"] for row in found["categories"]] == COLOURS
    for row in found["categories"]:
        assert row["lower"] <= held.count(row["category"]) / 3000 <= row["upper"]
        assert row["count"] == pytest.approx(3000 * row["frequency"])
    assert sum(row["distribution"] for row in found["categories"]) == pytest.approx(1)


def test_quantiles_are_near_the_clients_own(run, tmp_path) -> None:
    path = tmp_path / "ages.txt"
    path.write_text("".join(f"{18 + i % 60}\n" for i in range(6000)))
    asked = ["quantiles", "--input", path, "--lower", "0", "--upper", "100", *TARGET]
    found = run.json(*asked, "--at", "0.25,0.5,0.9")
    assert 0.99 < found["upper"] <= 1
    assert found["clients"] == 6000
    for row, exact in zip(found["quantiles"], (33, 48, 72), strict=True):
        assert row["quantile"] == pytest.approx(exact, abs=4)
    out = run.text(*asked)
    assert "for 6,000 clients by laplace-quantiles" in out
    path.write_text("18\nold\n")
    assert "old" in run.refused(*asked)


@pytest.mark.slow
def test_a_column_of_csv_with_other_values_counted_together(run, tmp_path) -> None:
    path = tmp_path / "table.csv"
    rows = [("id", "colour"), *((n, "mauve" if n % 4 == 0 else "red") for n in range(2000))]
    with path.open("w", newline="", encoding="utf-8-sig") as text:
        csv.writer(text).writerows(rows)
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\n")
    asked = ["frequencies", "--input", path, "--column", "colour", "--categories-file", names, *TARGET]
    assert "value 1 is 'mauve', which is none of the categories" in run.refused(*asked)
    assert "name its column with --column" in run.refused(
        "frequencies", "--input", path, "--categories-file", names, *TARGET
    )  # the heading line was read as a client's value
    found = run.json(*asked, "--other", "another", "--confidence", 1 - 1e-9)
    share = {row["category"]: (row["lower"], row["upper"]) for row in found["categories"]}
    assert list(share) == ["red", "green", "another"]
    assert share["another"][0] <= 0.25 <= share["another"][1]


def test_the_mean_of_users_is_the_plans(run, histories) -> None:
    asked = ["mean", "--input", histories, "--client", "user", "--columns", "x,y", "-e", 3, "--radius", 1]
    found = run.json(*asked, "--sigma", 0.3)
    plan = UserLevelMean(local_epsilon=3.0, dim=2, clients=1000, samples=4, radius=1.0, sigma=0.3)
    assert found["noise"] == pytest.approx(math.sqrt(plan.mean_variance))
    assert (found["clients"], found["samples"], found["local_epsilon"]) == (1000, 4, 3.0)
    # The second stage's channel follows from the first's reports: an epoch's, not one fixed before.
    for sigma, sampling in ((0.3, "full"), (0.01, "epoch")):
        found_at = run.json(*asked, "--sigma", sigma)
        accountant = accounted(
            ShuffleRound(
                local_epsilon=3.0, population=1000, cohort=1000, sampling=sampling, channel_fixed=True
            )
        )
        assert found_at["stages"] == (2 if sampling == "epoch" else 1)
        assert found_at["upper"] == accountant.epsilon(1e-6).upper
    away = math.hypot(found["mean"]["x"] - 0.3, found["mean"]["y"] + 0.2)
    assert away < 12 * found["noise"]
    fewer = run.json(*asked, "--sigma", 0.3, "--samples", 2)
    assert fewer["samples"] == 2
    out = run.text(*asked, "--sigma", 0.3)
    assert "all 4 samples of each of 1,000 clients" in " ".join(out.split())


def test_levels_share_one_report(run, values) -> None:
    path, held = values
    found = run.json("refine", "--input", path, "--levels", "0.5,8,2", *LISTED)
    levels = MultilevelHadamard(local_epsilons=(8.0, 2.0, 0.5), dim=4)
    assert [row["local_epsilon"] for row in found["levels"]] == [8.0, 2.0, 0.5]
    assert [row["who"] for row in found["levels"]] == ["key 1", "key 2", "everybody"]
    assert found["randomness_bits"] == levels.randomness_bits < found["separate_randomness_bits"]
    errors = [row["error"] for row in found["levels"]]
    assert errors == sorted(errors)
    for row in found["levels"]:
        off = [row["frequencies"][name] - held.count(name) / len(held) for name in COLOURS]
        assert math.hypot(*off) < 8 * row["error"]
    out = run.text("refine", "--input", path, "--levels", "2,1", *LISTED)
    assert "everybody, ε0 = 1" in out


def test_what_is_hidden_is_recovered_with_its_keys_alone(run, values, tmp_path) -> None:
    path, held = values
    published, keys = tmp_path / "published.txt", tmp_path / "keys.txt"
    both = ["--published", published, "--keys", keys, "-e", 2, *LISTED]
    code, out, _ = run("hide", "--input", path, *both)
    law = KeyLaw.shortest(local_epsilon=2.0, categories=4)
    assert code == 0
    assert f"{law.entropy_bits:.3f} bits" in out
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert published.read_text().split() != held
    code, out, _ = run("recover", *both)
    assert (code, out.split()) == (0, held)
    listed = LISTED[1].split(",")
    for wrong in (listed[::-1], [*listed, "another"]):
        assert "for another order" in run.refused("recover", *both[:-2], "--categories", ",".join(wrong))
    assert run("recover", *both[:-4], "-e", 3, *LISTED)[:2] == (2, "")
    kept = keys.read_text()
    assert "a key hides one category once" in run.refused("hide", "--input", path, *both)
    assert keys.read_text() == kept
    assert "need a file each" in run.refused(
        "hide", "--input", path, "--published", keys, "--keys", keys, "-e", 2, *LISTED
    )


@pytest.mark.parametrize(
    ("content", "extra", "message"),
    [
        (b"red\nmauve\n", LISTED, "value 2 is 'mauve'"),
        (b"red\n\nblue\n", LISTED, "line 2 of"),
        (b"red\n\xff\xfe\n", LISTED, "not text in UTF-8"),
        (b"red\n", [], "it is public, so it must not be taken from the data"),
        (b"a,b\n1,2\n", [*LISTED, "--column", "colour"], "has no column 'colour'; its first line names a, b"),
        (b"a,b\n1,2\n,3\n", [*LISTED, "--column", "a"], "row 2 of"),
        (b"red\n" * 3, [*LISTED, "--epsilon", "0"], "epsilon must be"),
    ],
)
def test_bad_files_end_in_one_sentence(run, tmp_path, content, extra, message) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert message in run.refused("frequencies", "--input", path, *TARGET, *extra)


@pytest.mark.slow
def test_names_with_square_brackets_are_shown_as_they_are(run, tmp_path) -> None:
    """Rich takes [bold] for markup, and [/b] for the end of something that never began."""
    path, table = tmp_path / "values.txt", tmp_path / "users.csv"
    path.write_text("[bold]\n[/b]\n" * 200)
    table.write_text("user,[/x]\n" + "".join(f"{user},0.5\n" for user in range(200)))
    listed = ["--input", path, "--categories", "[bold],[/b]"]
    asked = ["--client", "user", "--columns", "[/x]", "-e", 2, "--radius", 1, "--sigma", 0.3]
    for arguments, names in (
        (["frequencies", *listed, *TARGET, "--protocol", "histogram-sum"], ("[bold]", "[/b]")),
        (["refine", *listed, "--levels", "1,2"], ("[bold]", "[/b]")),
        (["mean", "--input", table, *asked], ("[/x]",)),
    ):
        out = run.text(*arguments)
        assert all(name in out for name in names)


@pytest.mark.parametrize("inside", ["\x0c", "\x1d", "\x85", "\u2028"])
def test_one_line_is_one_client_whatever_stands_in_it(run, tmp_path, inside) -> None:
    """A client counted twice would have its ε spent twice."""
    path = tmp_path / "values.txt"
    path.write_text(f"red{inside}blue\nred\n", encoding="utf-8")
    assert "value 1 is" in run.refused("frequencies", "--input", path, *TARGET, *LISTED)


def test_nothing_is_written_where_a_folder_is_missing(run, values, tmp_path) -> None:
    asked = ["--published", tmp_path / "none" / "out", "--keys", tmp_path / "keys", "-e", 1]
    assert "is no folder" in run.refused("hide", "--input", values[0], *LISTED, *asked)
    assert not (tmp_path / "keys").exists()


def test_bad_histories_end_in_one_sentence(run, histories, tmp_path) -> None:
    asked = ["--client", "user", "--columns", "x,y", "-e", 2, "--radius", 1, "--sigma", 0.3]
    uneven = tmp_path / "uneven.csv"
    uneven.write_text(histories.read_text(encoding="utf-8-sig") + "u1,0,0\n")
    word = tmp_path / "word.csv"
    word.write_text("user,x,y\nu,1,two\n")
    for path, extra, message in (
        (uneven, [], "clients have 4 to 5 samples"),
        (uneven, ["--samples", 5], "must be from 1 to 4"),
        (word, [], "row 1 of"),
        (tmp_path / "none.csv", [], "No such file"),
        (histories, ["--mechanism", "k-rr"], "does not take vectors"),
        (histories, ["--sigma", -1], "sigma"),
    ):
        assert message in run.refused("mean", "--input", path, *asked, *extra)
