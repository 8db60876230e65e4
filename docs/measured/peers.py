"""Other people's accountants on the same questions."""

from __future__ import annotations

from statistics import median
from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.core import rounded

BENCHMARKS = "docs/reference/benchmarks.md"
COLUMNS = "abcdefg"
_LAWS = {
    "generic": "ours, any randomizer",
    "interactive": "ours, chosen during the round",
    "10-RR": "ours, 10-RR",
    "Laplace": "ours, Laplace",
}
_PEERS = (
    ("generic", "BorjaBalle", "blanket, Hoeffding", "BorjaBalle, Hoeffding"),
    ("generic", "BorjaBalle", "blanket, BennettExact", "BorjaBalle, Bennett"),
    ("generic", "wangsw", "stronger clones", "wangsw, stronger clones"),
    ("interactive", "apple", "2021 clones, upper", "apple, 2021 clones, upper"),
    ("interactive", "apple", "2021 clones, lower", "apple, 2021 clones, lower"),
    ("10-RR", "BorjaBalle", "blanket, BennettExact", "BorjaBalle, Bennett"),
    ("10-RR", "wangsw", "variation ratio", "wangsw, variation ratio: *no bound*"),
    ("Laplace", "BorjaBalle", "blanket, BennettExact", "BorjaBalle, Bennett"),
    ("Laplace", "wangsw", "variation ratio", "wangsw, variation ratio: *unproven here*"),
)


def _answers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result("benchmarks/peers")["answers"]
    return found


def _short(value: float, *, up: bool) -> str:
    return rounded(value, up=up).removeprefix("0")


def single_rounds() -> str:
    """One shuffle of everybody: ours, and theirs over our upper end."""
    rows = []
    for law, title in _LAWS.items():
        own = {row["setting"]["kind"]: row["ours"] for row in _answers() if row["law"] == law}
        ends = [own[each] for each in COLUMNS]
        if all(each["lower"] > 0 for each in ends):
            rows.append((f"**{title}**: lower", *(_short(each["lower"], up=False) for each in ends), ""))
            name = "upper"
        else:
            name = f"**{title}**: upper"
        rows.append((name, *(_short(each["upper"], up=True) for each in ends), "1"))
        for for_law, peer, method, label in _PEERS:
            if for_law != law:
                continue
            theirs = {
                row["setting"]["kind"]: row
                for row in _answers()
                if (row["law"], row["method"]) == (law, method) and row["peer"].startswith(peer)
            }
            factors = (theirs[each]["factor"] for each in COLUMNS)
            took = median(theirs[each]["time_ratio"] for each in COLUMNS)
            rows.append((label, *(f"{each:.4g}" for each in factors), f"{took:.2g}"))
    return table(("who, for what", *COLUMNS, "time"), rows)


def composed_rounds() -> str:
    """T rounds of any randomizer."""
    groups: dict[str, dict[str, Any]] = {}
    for row in _answers():
        if row["setting"]["kind"].startswith("T"):
            groups.setdefault(row["setting"]["kind"], {})[row["peer"].split("/")[0]] = row

    def scientific(number: float) -> str:
        return f"{number:.0e}".replace("e+0", "e").replace("e-0", "e-") if number >= 1e4 else f"{number:.0f}"

    def cell(row: dict[str, Any], digits: str) -> str:
        return f"{row['factor']:{digits}} ({rounded(row['time_ratio'], up=True, digits=1)}×)"

    rows = []
    for peers in groups.values():
        row = peers["dp-accounting"]
        setting, own = row["setting"], row["ours"]
        rows.append(
            (
                f"{setting['local_epsilon']:g}",
                scientific(setting["population"]),
                scientific(setting["cohort"]),
                scientific(setting["num_steps"]),
                f"{setting['delta']:.0e}".replace("e-0", "e-"),
                f"[{_short(own['lower'], up=False)}, {_short(own['upper'], up=True)}]",
                cell(peers["Antonious-Grigis"], ".3g"),
                cell(row, ".4f"),
                cell(peers["PLD_accounting"], ".4f"),
            )
        )
    head = (
        "ε0",
        "n",
        "k",
        "T",
        "δ",
        "ours",
        "Antonious-Grigis, RDP",
        "dp-accounting 0.6",
        "PLD_accounting 2.0",
    )
    return table(head, rows)


_CENTRAL = ("dp-accounting PLD", "dp-accounting RDP", "Opacus RDP", "Opacus PRV", "prv_accountant")


def _central_table(relation: str, samplings: tuple[str, ...]) -> str:
    asked = [
        row
        for row in result("benchmarks/central_rounds")["rows"]
        if (row["setting"]["neighbouring_relation"], row["setting"]["sampling"])
        in {(relation, each) for each in samplings}
    ]
    columns = [name for name in _CENTRAL if any(row["answers"][name] is not None for row in asked)]

    def cell(answer: Any) -> str:
        if isinstance(answer, list):
            return f"[{rounded(answer[0], up=False)}, {rounded(answer[1], up=True)}]"
        return "" if answer is None else "fails" if isinstance(answer, str) else rounded(answer, up=True)

    rows = []
    for row in asked:
        setting, answers = row["setting"], row["answers"]
        rows.append(
            (
                setting["sampling"].replace("without-replacement", "k of n"),
                f"{setting['sampling_rate']:g}",
                f"{setting['steps']:,}",
                f"{setting['noise_multiplier']:g}",
                f"{setting['delta']:.0e}".replace("e-0", "e-"),
                f"**{cell(answers['ours'])}**",
                *(cell(answers[name]) for name in columns),
            )
        )
    return table(("sampling", "rate", "T", "noise", "δ", "**ours**", *columns), rows)


def central_added() -> str:
    """Rounds of a trusted server, one record more or less."""
    return _central_table("add-or-remove-one", ("poisson", "full"))


def central_replaced() -> str:
    """Rounds of a trusted server, one record replaced."""
    return _central_table("replace-one", ("without-replacement", "poisson", "full"))


TABLES: Tables = {
    BENCHMARKS: {
        "peers, one round": single_rounds,
        "peers, T rounds": composed_rounds,
        "central rounds, add-or-remove-one": central_added,
        "central rounds, replace-one": central_replaced,
    }
}


def _central() -> list[str]:
    """How far others are above our upper end, by the sampling they answer for; adversaries; times."""
    measured = result("benchmarks/central_rounds")
    rows, times = measured["rows"], measured["times"]

    def over(name: str, relation: str, *samplings: str) -> list[float]:
        return [
            row["answers"][name] / row["answers"]["ours"][1]
            for row in rows
            if row["setting"]["neighbouring_relation"] == relation
            and row["setting"]["sampling"] in samplings
            and isinstance(row["answers"][name], float)
        ]

    def gaps(relation: str, *samplings: str) -> list[float]:
        return [
            row["answers"]["ours"][1] / row["answers"]["ours"][0]
            for row in rows
            if row["setting"]["neighbouring_relation"] == relation and row["setting"]["sampling"] in samplings
        ]

    added, replaced = "add-or-remove-one", "replace-one"
    rdp = over("dp-accounting RDP", added, "poisson", "full")
    drawn = over("dp-accounting RDP", replaced, "without-replacement")
    prv = over("Opacus PRV", added, "poisson", "full")
    pld = [
        *over("dp-accounting PLD", added, "poisson", "full"),
        *over("dp-accounting PLD", replaced, "poisson", "full"),
    ]
    poisson = [*gaps(added, "poisson"), *gaps(replaced, "poisson")]
    full = [*gaps(added, "full"), *gaps(replaced, "full")]
    wide = gaps(replaced, "without-replacement")
    attained = [
        " | ".join(f"{value:.4g}" for name, value in each.items() if name not in ("question", "ours"))
        + f" | [{rounded(each['ours'][0], up=False)}, {rounded(each['ours'][1], up=True)}]"
        for each in measured["adversaries"]
    ]
    drawn_time, poisson_time, full_time = (
        times[name] for name in ("without-replacement", "poisson", "no-amplification")
    )
    return [
        *attained,
        f"{poisson_time['ours, s']:.1f} s and {poisson_time['Flower, s']:.0f} s under Poisson sampling (× "
        f"{poisson_time['ratio']:.2f}), {drawn_time['ours, s']:.1f} s and {drawn_time['Flower, s']:.0f} s",
        f"for k of n (× {drawn_time['ratio']:.2g}), {full_time['ours, s']:.1g} s and "
        f"{full_time['Flower, s']:.1g} s without sampling (× {full_time['ratio']:.2g})",
        f"its PLD is {min(pld):.4f} to {max(pld):.3f} times our upper end",
        f"RDP {min(rdp):.2f} to {max(rdp):.2f} times",
        f"Opacus's PRV {min(prv):.4f} to {max(prv):.2f} times",
        f"for k of n RDP is {min(drawn):.1f} to {max(drawn):.0f} times",
        f"at most {100 * (max(poisson) - 1):.2g} % apart under Poisson sampling",
        f"{100 * (max(full) - 1):.1g} % without sampling",
        f"{100 * (min(wide) - 1):.0f} to {100 * (max(wide) - 1):.0f} % for k of n",
    ]


def _single_peers() -> list[str]:
    """Sentences on peers that answer only few of the questions."""

    def of(peer: str) -> list[dict[str, Any]]:
        return [row for row in _answers() if row["peer"].startswith(peer)]

    one, four = of("DPBayes")
    assert all(f"{row['factor']:.4f}" == "1.0000" for row in (one, four))
    gauss, (clones,) = of("spliew"), of("random-allocation")
    theirs, ours, times = (
        [f"{value:.4f}".removeprefix("0") for value in (row["epsilon"] for row in gauss)],
        [_short(row["ours"]["upper"], up=True) for row in gauss],
        [f"{row['factor']:.{1 if row['factor'] > 2 else 2}f}" for row in gauss],
    )
    first, second = (f"{row['epsilon']:.5f}".removeprefix("0") for row in (one, four))
    return [
        f"{first} at T = 1 and {second} at T = 4, both 1.0000 of ours; it takes "
        f"{max(row['seconds'] for row in (one, four)):.0f} s",
        f"{', '.join(theirs)} at T = 1, 10, 100; ours at most {', '.join(ours)}: "
        f"{times[0]}, {times[1]} and {times[2]} times",
        f"{clones['epsilon']:.2f}, {clones['factor']:.0f} times",
    ]


def sentences() -> Sentences:
    """Pieces of text about peers."""
    times = [f"{each['seconds']:.2f}" for each in result("benchmarks/peers")["composition_times"]]
    own, rdp, prv, many, many_rdp, many_prv = times
    apple = [
        f"{row['epsilon']:.4g}".removeprefix("0")
        for row in _answers()
        if row["method"] == "2021 clones, upper" and row["setting"]["kind"] in "efg"
    ]
    ratio = result("benchmarks/peers")["variation_ratio_of_5_rr"]
    lower, upper = ratio["ours"]
    assert f"{lower:.4g}" == f"{ratio['variation_ratio']:.4g}"
    return {
        BENCHMARKS: [
            *_single_peers(),
            *_central(),
            f"it gives δ = {ratio['variation_ratio']:.4g},",
            f"ours is at most {rounded(upper, up=True)} (",
            f"ours {own} s, Opacus RDP {rdp} s, Opacus PRV {prv} s",
            f"100 kinds of 100 steps: {many} s, {many_rdp} s and {many_prv} s",
            f"({apple[0]}, {apple[1]} and {apple[2]})",
        ]
    }
