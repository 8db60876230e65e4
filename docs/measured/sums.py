"""Protocols of several messages per client: what they send, and how near they come."""

from __future__ import annotations

import math
from typing import Any

from measured.parts import Sentences, Tables, result, table
from measured.plans import scientific
from shuffle_plugins.core import rounded
from shuffle_plugins.protocols.shares import mixing_distance

PROTOCOLS = "docs/guides/protocols.md"
BENCHMARKS = "docs/reference/benchmarks.md"
OTHERS = "docs/reference/other-histograms.md"
SUMS = "docs/proofs/sums.md"
TAGS = "docs/proofs/tags.md"
COUNTS = "docs/proofs/counts.md"

# name, key, data, what a message is, what a report is as counts, accounted by
_KINDS = (
    (
        "`ScalarSum` (P_1D)",
        "scalar",
        "numbers in [0, Δ]",
        "{} bits",
        "{} as a count",
        "covering Gaussian, [proof](../proofs/sums.md)",
    ),
    (
        "`SplitSum`",
        "split",
        "numbers in [0, Δ]",
        "{} shares",
        "{}",
        "its exact law, and what shares give away, [proof](../proofs/sums.md#split-sums)",
    ),
    (
        "`VectorSum` (`vector-sum`, P_vec)",
        "vector",
        "ℓ2 ball, d = 1,000",
        "{} labelled bits",
        "{} as counts",
        "covering Gaussian",
    ),
    (
        "`BallSum` (`multi-message`, MMS)",
        "ball",
        "ℓ2 ball, d = 1,000",
        "{} tagged bits",
        "{}",
        "composed tags, [proof](../proofs/tags.md)",
    ),
    (
        "`PoissonBinomialSum` (`poisson-binomial`)",
        "poisson",
        "ℓ2 ball, d = 1,000",
        "{} labelled bits",
        "{} as counts",
        "covering Gaussian, [proof](../proofs/counts.md)",
    ),
    (
        "`CubeSum` (MMS)",
        "cube",
        "ℓ∞ ball, d = 1,000",
        "{} tagged bits",
        "{}",
        "composed tags",
    ),
    (
        "`BinarySum` (MMS)",
        "binary",
        "bits, d = 1,000",
        "{} tagged bits",
        "{}",
        "composed tags",
    ),
    (
        "`LaplaceScalarSum`",
        "laplace scalar",
        "numbers in [0, Δ]",
        "{} report",
        "{}",
        "its exact law",
    ),
    (
        "`LaplaceVectorSum` (`laplace-vector-sum`)",
        "laplace vector",
        "ℓ1 ball, d = 100",
        "{} report",
        "{}",
        "its exact law",
    ),
    (
        "`DecoyVectorSum` (`decoy-vector-sum`)",
        "decoy vector",
        "ℓ1 ball, d = 100",
        "{} coordinates",
        "{}",
        "two Poisson counts, [proof](../proofs/tags.md#decoys)",
    ),
    (
        "`UnaryL1Sum` (`unary-l1-sum`)",
        "l1",
        "ℓ1 ball, d = 100",
        "{} labelled bits",
        "{}",
        "counts of bits, [proof](../proofs/tags.md#counted-unary-encoding)",
    ),
)


def _found(part: str) -> Any:
    return result("benchmarks/protocols")[part]


def _power(number: int) -> str:
    """10⁴ and larger powers of ten as such."""
    small = {10**4: "10⁴", 10**5: "10⁵", 10**6: "10⁶"}
    return small.get(number, f"{number:,}")


def _many(number: int) -> str:
    """A number of messages, in powers of ten from 10⁸ on."""
    return scientific(number) if number >= 10**8 else f"{number:,}"


def kinds() -> str:
    """Every sum at one setting."""
    found = _found("kinds")

    def row(kind: tuple[str, ...]) -> tuple[str, ...]:
        name, key, data, message, report, accounted = kind
        of = found[key]
        return (
            name,
            data,
            message.format(_rounded(of["messages"])),
            report.format(_rounded(of["bits"])),
            f"{of['error']:.1f}" if of["error"] < 10 else f"{of['error']:,.0f}",
            accounted,
        )

    head = (
        "protocol",
        "data",
        "messages of one client",
        "bits of one client",
        "error",
        "accounted by",
    )
    return table(head, (row(kind) for kind in _KINDS))


def _rounded(number: float) -> str:
    """A whole number, or a small mean."""
    return (
        f"{number:,}" if isinstance(number, int) else f"{number:,.3g}" if number < 100 else f"{number:,.0f}"
    )


def _beside(dim: int, clients: int) -> dict[str, Any]:
    (found,) = (
        row for row in _found("beside_the_gaussian") if (row["dim"], row["clients"]) == (dim, clients)
    )
    return dict(found)


def several() -> str:
    """Deviations of one sum of numbers where several are taken."""
    rows = _found("several_sums")["rows"]

    def cells(key: str, other: str) -> list[str]:
        shown = [f"{of[key]:.3g}" for of in rows]
        return [f"**{text}**" if of[key] < of[other] else text for of, text in zip(rows, shown, strict=True)]

    return table(
        ("n = 10,000, ε = 1, δ = 1e-6, sums", *(str(of["num_steps"]) for of in rows)),
        (
            ("deviation by `SplitSum` (Laplace)", *cells("split", "scalar")),
            ("deviation by `ScalarSum` (Gaussian)", *cells("scalar", "split")),
        ),
    )


def large() -> str:
    """Vector sums at two sizes, as drawn."""
    rows = result("benchmarks/vector_sum")["noise"]

    def row(title: str, write: Any) -> tuple[str, ...]:
        return (title, *(write(of) for of in rows))

    head = ("", *(f"d = {of['dim']:,}, n = {of['clients']:,}" for of in rows))
    error = max(of["standard_error"] for of in rows)
    values = rows[0]["coordinates"]
    return table(
        head,
        (
            row(
                f"variance as drawn over its formula, {values:,} values (± {error:.4f})",
                lambda of: f"{1 + of['relative_error']:.4f}",
            ),
            row(
                "variance as drawn over the analytic Gaussian's",
                lambda of: f"{of['over_analytic_gaussian']:.3f}",
            ),
            row("the paper's constants over it", lambda of: f"{of['under_the_papers_constants']:,.0f}"),
            row(
                "certified ε, at least and at most",
                lambda of: (
                    f"{rounded(of['certified'][0], up=False, digits=3)}, "
                    f"{rounded(of['certified'][1], up=True)}"
                ),
            ),
            row("calibrating, s", lambda of: f"{of['seconds_to_calibrate']:.2g}"),
            row(
                "drawing all coins the first time, which makes their table, s",
                lambda of: f"{of['seconds_to_draw']:.2g}",
            ),
            row("memory added, MB", lambda of: f"{of['megabytes_added']:.0f}"),
        ),
    )


def draft() -> str:
    """The internet draft's parameters."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        lower, upper = of["epsilon"]
        least, most = of["shuffled_whole"]
        rare, held = of["optimal_deviation"]
        return (
            f"{of['bit_epsilon']:.1f}",
            f"{of['deviation']:.4g}",
            f"{of['printed']:.3f}",
            f"**{rounded(upper, up=True)}**",
            rounded(lower, up=False),
            f"{rounded(least, up=False, digits=3)} to {rounded(most, up=True, digits=3)}",
            f"{of['optimal_local_epsilon']:.2f} (symmetric: {of['symmetric_local_epsilon']:g})",
            f"{rare:.3g}",
            f"{held:.1f}",
        )

    head = (
        "ε0 of a bit",
        "deviation",
        "draft",
        "certified",
        "at least",
        "shuffled whole",
        "optimal: ε0 of a report",
        "deviation, rare",
        "held by 10,000",
    )
    return table(head, (row(of) for of in _found("draft")))


def covers() -> str:
    """Gaussians that cover fair coins."""
    powers = {4: "10⁴", 6: "10⁶", 8: "10⁸"}
    return table(
        ("coins M", "s²/(M/4)", "τ, at most"),
        (
            (
                powers[of["power"]],
                f"{of['variance']:.5f}",
                rounded(of["distance"], up=True, digits=2).replace("e-0", "e-"),
            )
            for of in _found("covers")["coins"]
        ),
    )


def windows() -> str:
    """Noise that independent sums, windows and a trusted server leave in a model."""
    found = result("benchmarks/window_noise")
    shown = [(t, band) for band in (14, 100) for t in (100, 200, 400, 1_000, 3_000, 10_000)]
    arms = ("independent", "windows", "one_kernel", "any_band")
    return table(
        (
            "rounds",
            "one participation in",
            "independent sums",
            "windows",
            "trusted server, Toeplitz",
            "any band",
        ),
        (
            (f"{t:,}", str(band), *(f"{row[arm]:.3g}" if arm in row else "" for arm in arms))
            for t, band in shown
            if (row := found.get(f"{t},{band}"))
        ),
    )


def coins() -> str:
    """Sums of coins beside the analytic Gaussian and the paper."""
    head = (
        "d",
        "n",
        "noise variance over the analytic Gaussian's",
        "with rounding",
        "the paper's constants over ours",
        "bits per client, counts",
    )
    return table(
        head,
        (
            (
                _power(of["dim"]),
                _power(of["clients"]),
                f"{of['noise']:.3f}",
                f"{of['with_rounding']:.3f}",
                f"{round(of['paper_over_ours'], -3):,.0f}",
                f"{of['bits']:,}",
            )
            for of in _found("coins")
        ),
    )


def secret() -> str:
    """The MNIST run with and without secret participation."""
    found = _found("secret")
    (mean, of_mean), (most, of_most) = found["drawn"]["server"]

    def epsilon(value: float) -> str:
        return rounded(value, up=True, digits=3)

    def both(title: str, of: dict[str, Any], *, bold: bool) -> tuple[str, ...]:
        end = epsilon(of["both"])
        return (title, f"{of['noise']:.2f}", end, f"**{end}**" if bold else end)

    return table(
        ("", "noise of the sum / clipping norm", "ε against an observer", "ε against the server"),
        (
            (
                "4,096 drawn by the server",
                f"{found['drawn']['noise']:.2f}",
                epsilon(found["drawn"]["observer"]),
                f"{epsilon(of_mean)} in {mean} rounds, the mean client; {epsilon(of_most)} in {most}",
            ),
            both("all 60,000 answer, γ = 4,096/60,000, the same noise", found["alike"], bold=True),
            both("the same, calibrated for 2.93", found["secret"], bold=True),
            both("all 60,000 add data in all rounds", found["everybody"], bold=False),
        ),
    )


def tagged() -> str:
    """Sums of tagged bits."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        name = f"`{of['name']}`"
        name += ", Kashin" if of["name"] == "BallSum" else ""
        name += f", s = {of['samples']}" if of["samples"] else ""
        lower, upper = of["epsilon"]
        top = rounded(upper, up=True, digits=4)
        return (
            name,
            _power(of["dim"]),
            _power(of["clients"]),
            f"{of['planes']} × {of['blocks']:,}",
            f"{of['bits']:,}",
            f"[{rounded(lower, up=False, digits=4)}, {top}]" if lower > 0 else f"≤ {top}",
            f"{of['over_gaussian']:.2f}",
        )

    head = ("protocol", "d", "n", "planes × blocks", "bits per client", "certified ε", "variance")
    return table(head, (row(of) for of in _found("tagged")))


_BESIDE = ((10, 1_000), (100, 1_000), (1_000, 10**4), (1_000, 10**5), (10**4, 10**4))


def either() -> str:
    """P_vec or multi-message means."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        vector, ball = of["vector"], of["ball"]
        return (
            _power(of["dim"]),
            _power(of["clients"]),
            _many(vector["messages"]),
            f"{vector['bits']:,}",
            f"{ball['messages']:,}",
            f"{ball['bits']:,}",
            f"{ball['over_gaussian'] / vector['over_gaussian']:.1f}",
        )

    head = (
        "d",
        "n",
        "P_vec: messages",
        "bits, as counts",
        "MMS: messages",
        "bits",
        "variance over P_vec's",
    )
    return table(head, (row(_beside(*size)) for size in _BESIDE))


def ball() -> str:
    """Poisson binomial sums beside the others in an ℓ2 ball."""
    rows = []
    for of in _found("beside_the_gaussian"):
        for place, (bits, poisson) in enumerate(of["poisson"].items()):
            first, vector = place == 0, of["vector"]
            variance = f"{poisson['over_gaussian']:.2f}"
            rows.append(
                (
                    _power(of["dim"]) if first else "",
                    _power(of["clients"]) if first else "",
                    f"{of['ball']['bits']:,}, {of['ball']['over_gaussian']:.2f}" if first else "",
                    bits,
                    f"{poisson['messages']:,}",
                    f"{poisson['bits']:,}",
                    f"**{variance}**" if poisson["over_gaussian"] < 1.25 else variance,
                    _many(vector["messages"]) if first else "",
                    f"{vector['bits']:,}" if first else "",
                    f"{vector['over_gaussian']:.2f}" if first else "",
                )
            )
    head = (
        "d",
        "n",
        "`BallSum`: bits, variance",
        "m",
        "messages",
        "bits",
        "variance",
        "P_vec: messages",
        "bits",
        "variance",
    )
    return table(head, rows)


def lost() -> str:
    """How much of the information the Gaussians that cover leaning bits give away."""
    return table(
        ("ε0 of a bit", "N = 1,000", "10⁴", "10⁵", "10⁷ (coins)"),
        (
            (f"{of['local_epsilon']:.2f}", *(f"{each:.2f}" for each in of["over_information"]))
            for of in _found("covers")["bits"]
        ),
    )


def below() -> str:
    """Lower over upper ends of Poisson binomial sums."""
    head = ("d", "n", "m", "T", "everybody", "k of n, a tenth", "secret, γ = ½", "a tenth, calibrated for it")
    keys = ("everybody", "sampled", "secret", "sampled_own")

    def down(share: float) -> str:
        return f"{math.floor(100 * share) / 100:.2f}"

    return table(
        head,
        (
            (
                _power(of["dim"]),
                _power(of["clients"]),
                str(of["bits"]),
                str(of["num_steps"]),
                *(down(of[key]) for key in keys),
            )
            for of in _found("from_below")
        ),
    )


TABLES: Tables = {
    PROTOCOLS: {"kinds": kinds},
    BENCHMARKS: {"large": large, "several": several},
    OTHERS: {"draft": draft},
    SUMS: {"covers": covers, "secret": secret, "coins": coins, "windows": windows},
    TAGS: {"tagged": tagged, "either": either},
    COUNTS: {"lost": lost, "ball": ball, "below": below},
}


def _several() -> list[str]:
    """What sums of numbers cost beside each other, and how many shares hide what is shared."""
    split, scalar = _found("several_sums")["equal"], _found("kinds")["scalar"]
    shares = next(
        count
        for count in range(9, 32)
        if mixing_distance(clients=10_000, shares=count, modulus=2**32) < 2**-40
    )
    assert mixing_distance(clients=10_000, shares=shares - 1, modulus=2**32) > 2**-40
    return [
        f"it is below 2^-40 from {shares} shares on",
        f"a variance of {split['variance']:.0f}, `SplitSum` costs ε = {rounded(split['epsilon'], up=True)} "
        f"where `ScalarSum` costs 1, in {split['messages']} messages and {split['bits']} bits where "
        f"`ScalarSum` sends {scalar['messages']} one-bit messages (or one count of {scalar['bits']} bits)",
    ]


def _protocols() -> list[str]:
    plain, short = (_found("small")[key] for key in ("plain", "short"))
    rows = _found("several_sums")["rows"]
    gaussian = min(of["num_steps"] for of in rows if of["scalar"] < of["split"])
    return [
        f"vector sum above is {plain['messages'] / 1e6:.1f} million bits of each client",
        f"as counts it is {-(-plain['bits'] // 8)} bytes",
        f"with `overhead=0.1` they are {round(short['messages'], -3):,}, for "
        f"{100 * short['more_error']:.0f} % more error",
        f"has {rows[0]['split'] / rows[0]['scalar']:.2f} of the Gaussian's error; from {gaussian} sums of "
        "everybody on",
    ]


def _speed() -> list[str]:
    """How long drawing a sum of vectors takes."""
    speed = result("benchmarks/vector_sum")["speed"]
    return [
        f"`randomize` of all {speed['clients']:,} clients at d = {speed['dim']:,} takes "
        f"{speed['seconds_to_encode']:.1f} s",
        f"which draws all clients' coins at once, {speed['seconds_to_randomize_sum']:.2f} s.",
    ]


def _frequencies() -> list[str]:
    found, rows = _found("histograms"), _found("draft")
    over, local = found["over_gaussian"], found["local_epsilon"]
    measured = result("benchmarks/frequencies")["rows"]
    central = {row["case"]: row["predicted"] for row in measured if row["method"] == "Gaussian"}
    single = [row for row in measured if row["method"].startswith("one message")]
    ratios = over["frequencies"] + [math.sqrt(row["predicted"] / central[row["case"]]) for row in single]
    levels = sorted({math.exp(row["local_epsilon"]) for row in single if "K = 16" in row["case"]})
    wide = sorted({math.exp(row["local_epsilon"]) for row in single if "K = 256" in row["case"]})
    times = [row["shuffled_whole"][0] / row["epsilon"][1] for row in rows]
    optimal = [row["optimal_local_epsilon"] / row["symmetric_local_epsilon"] for row in rows]
    optimal.append(local["optimal"] / local["symmetric"])
    return [
        f"{min(ratios):.1f} to {max(ratios):.1f} times the trusted server's Gaussian in ℓ2",
        f"{max(over['histogram']):.2f} times | "
        f"{min(over['optimal']):.2f} to {max(over['symmetric']):.2f} times",
        f"ε0 of a report is left: {rounded(local['optimal'], up=True, digits=3)} (optimal) and "
        f"{rounded(local['symmetric'], up=True, digits=3)} (symmetric)",
        f"with n = 20,000 clients e^ε0 is about {round(levels[0], -1):.0f} for 16 categories and "
        f"{round(wide[0], -1):.0f} for 256",
        f"costs {math.floor(min(times))} to {math.floor(max(times))} times less ε",
        f"a client's own report has {min(optimal):.2f} to {max(optimal):.2f} of the ε0",
    ]


def _above_best() -> str:
    """How far windows are above a trusted server's best."""
    rows = [row for row in result("benchmarks/window_noise").values() if "any_band" in row]
    more = max(row["windows"] / row["any_band"] for row in rows) - 1
    return f"Windows leave at most {math.ceil(100 * more)} % more noise than the best banded matrices"


def sentences() -> Sentences:
    """Pieces of text about protocols."""
    thesis, hidden = _found("thesis"), _found("secret")
    counted, optimal = _found("draft")[0], _beside(1_000, 10**4)
    return {
        PROTOCOLS: [*_protocols(), _above_best()],
        BENCHMARKS: [*_speed(), *_several()],
        OTHERS: _frequencies(),
        SUMS: [
            f"{hidden['secret']['bits']:,} bits each as counts, "
            f"with {hidden['secret']['coins']:,} coins for each coordinate "
            f"({hidden['drawn']['bits']:,} and {hidden['drawn']['coins']:,} before)",
        ],
        TAGS: [
            f"spends {rounded(thesis['epsilon'], up=True, digits=2)} with one plane, and has "
            f"{thesis['variance_over_ours']:.0f} times the variance",
            f"a shuffled report of symmetric unary encoding costs at least "
            f"{rounded(counted['shuffled_whole'][0], up=False, digits=3)}, "
            f"the counts of the same bits at most {rounded(counted['epsilon'][1], up=True)}",
        ],
        COUNTS: [
            f"are those of m = 1 here, at {optimal['poisson']['1']['over_gaussian']:.2f} in place of "
            f"{optimal['ball']['over_gaussian']:.2f}",
        ],
    }
