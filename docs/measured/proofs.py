"""Tables of the proofs of the accountant, and examples of all proofs: certified ε of single settings."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import binom

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.accounting import Sampling, ShuffleAccountant, ShuffleRound, Tag, TaggedRound
from shuffle_plugins.core import rounded

PROOFS = "docs/proofs/accounting.md"
NOISE = "docs/proofs/noise.md"
SUMS = "docs/proofs/sums.md"
TAGS = "docs/proofs/tags.md"
COUNTS = "docs/proofs/counts.md"
_MNIST = {"population": 60_000, "cohort": 10_000, "num_steps": 1_200, "delta": 1e-5}
_LEVELS = (0.5, 1.5, 4.0)


def _found(part: str) -> Any:
    return result("benchmarks/certified")[part]


def _up(value: float, digits: int = 4) -> str:
    return rounded(value, up=True, digits=digits)


def _down(value: float, digits: int = 4) -> str:
    return rounded(value, up=False, digits=digits)


def _short(number: float) -> str:
    """A number of clients or rounds, in powers of ten where it is one."""
    text = f"{number:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return text if float(text) == number and (number >= 1e3 or number < 1e-3) else f"{number:g}"


def _place(row: dict[str, Any]) -> str:
    keys = ("population", "cohort", "local_epsilon", "num_steps", "delta")
    return ", ".join(_short(row[key]) for key in keys)


def epochs() -> str:
    """Epochs in a secret order beside batches that are known."""
    found = _found("epochs")
    return table(
        (
            "n = 60,000, ε0 = 3, 20 epochs, δ = 1e-5",
            *(f"batch {cohort:,}" for cohort in found["cohorts"]),
        ),
        (
            (title, *(f"≤ {_up(value)}" for value in found[sampling]))
            for title, sampling in (
                ('an epoch, `sampling="epoch"`', "epoch"),
                ("batches known to the observer, `single-pass`", "single-pass"),
            )
        ),
    )


def records() -> str:
    """Clients of several records."""
    rows, before = [], ""
    for of in _found("records"):
        keys = ("population", "cohort", "local_epsilon", "num_steps")
        place = ", ".join(f"{of[key]:,g}" for key in keys)
        rows.append(
            (
                "" if place == before else place,
                f"{of['records']}, {of['samples']}",
                _up(of["upper"]),
                _down(of["lower"]),
            )
        )
        before = place
    return table(("n, k, ε0, T, δ = 1e-6", "m, s", "certified", "lower bound"), rows)


def _three(part: str) -> list[tuple[str, ...]]:
    return [(_place(of), _up(of["blanket"]), _up(of["upper"]), _down(of["lower"])) for of in _found(part)]


def counted() -> str:
    """Bits that are counted."""
    return table(("n, k, ε0, T, δ", "blanket", "counted", "real instance"), _three("counted"))


def crowd() -> str:
    """Signs that hide by all of their law."""
    return table(("n, k, ε0, T, δ", "blanket", "crowd", "real instance"), _three("crowd"))


def generic() -> str:
    """What is certified for any randomizer of ε0, whatever its mechanism."""
    return table(("n, k, ε0, T, δ", "blanket pair", "here", "real instance"), _three("generic"))


def groups() -> str:
    """Two groups of one ε0 each."""
    rows = [
        (
            of["mechanism"],
            f"{of['cohort']:,}",
            f"{of['num_steps']}",
            f"{of['local_epsilon']:g}",
            f"[{_down(of['lower'])}, {_up(of['upper'])}]",
            _up(of["apart"]),
            _up(of["loudest"]),
        )
        for of in _found("groups")
    ]
    heading = ("mechanism", "k", "T", "ε0", "one encoding", "reports show their group", "all at ε0 = 4")
    return table(heading, rows)


def personal() -> str:
    """Ten groups, here and as published."""
    rows = [
        (
            f"{of['least']:g} to {of['most']:g}",
            f"{of['clients']:,}",
            _up(of["gaussian"]),
            _up(of["bits"]),
            f"[{_down(of['lower'])}, {_up(of['upper'])}]",
            _up(of["noise"]),
        )
        for of in _found("personal")
    ]
    heading = ("ε0", "n", "2312.14388", "2407.18157, bits", "here, bits", "2407.18157, Laplace noise")
    return table(heading, rows)


_ORACLES = {
    "rappor": "RAPPOR",
    "oue": "optimal unary encoding",
    "local-hashing": "local hashing",
    "subset-selection": "subset selection",
    "limited-hadamard": "one-bit Hadamard response",
}


def oracles() -> str:
    """Oracles: the blanket pair, here, and a real instance."""

    def cell(name: str, level: float) -> str:
        (of,) = (
            row for row in _found("oracles") if (row["mechanism"], row["local_epsilon"]) == (name, level)
        )
        return ", ".join((_up(of["blanket"]), _up(of["upper"]), _down(of["lower"])))

    return table(
        ("", "ε0 = 0.5", "1.5", "4"),
        ((title, *(cell(name, level) for level in _LEVELS)) for name, title in _ORACLES.items()),
    )


def spreads() -> str:
    """Mechanisms whose records differ in few of many places."""
    titles = {
        "sqkr": "sqkr, l2-block",
        "l2-bit-planes": "l2-bit-planes",
        "linf-bit-planes": "linf-bit-planes",
    }
    rows, before = [], ""
    for of in _found("spreads"):
        title = titles[of["mechanism"]]
        rows.append(
            (
                "" if rows else "10⁴ of 60,000, 1,200, 1e-5",
                "" if title == before else title,
                f"{of['local_epsilon']:g}",
                _up(of["blanket"]),
                _up(of["upper"]),
                _down(of["lower"]),
            )
        )
        before = title
    head = ("k of n, T, δ", "mechanism, d = 1,000", "ε0", "blanket pair", "certified", "real instance")
    return table(head, rows)


_MECHANISMS = (
    ("3-ary response", "k-rr", 3),
    ("10-ary response", "k-rr", 10),
    ("binary response", "binary-rr", 1),
    ("Hadamard response", "hadamard-response", 50),
    ("subset selection", "subset-selection", 50),
    ("RAPPOR", "rappor", 50),
    ("optimal unary encoding", "oue", 50),
    ("local hashing", "local-hashing", 50),
    ("one-bit Hadamard response", "limited-hadamard", 50),
    ("PrivUnit", "privunit", 1_000),
    ("one coordinate of ℓ∞", "linf-coordinate", 1_000),
    ("Laplace", "laplace", 1),
    ("l2-bit-planes", "l2-bit-planes", 1_000),
    ("sqkr, l2-block", "sqkr", 1_000),
    ("generic", "generic", 1),
)


def mechanisms() -> str:
    """Certified ε of every mechanism, and its ratio to the lower end."""
    rows: dict[tuple[str, int, float], tuple[float, float]] = {
        (of["mechanism"], of["dim"], of["level"]): (of["lower"], of["upper"])
        for of in result("benchmarks/intervals")["intervals"]
        if of["setting"] == _MNIST
    }
    for of in (*_found("k_ary"), *(row for row in _found("generic") if row["population"] == 60_000)):
        rows[of["mechanism"], of["dim"], of["local_epsilon"]] = (of["lower"], of["upper"])

    def cell(name: str, dim: int, level: float) -> str:
        lower, upper = rows[name, dim, level]
        ratio = upper / lower
        return f"{_up(upper)} ({ratio:.3f})" if ratio < 1.1 else f"{_up(upper)} ({ratio:.2f})"

    return table(
        ("mechanism", "ε0 = 0.5", "1.5", "4"),
        ((title, *(cell(name, dim, level) for level in _LEVELS)) for title, name, dim in _MECHANISMS),
    )


def pairs() -> str:
    """Between which values the exact ε of the generic blanket pair lies."""
    rows = []
    for of in _found("pairs"):
        lower, upper = of["epsilon"]
        place = (_short(of[key]) for key in ("population", "cohort", "local_epsilon", "num_steps", "delta"))
        exact = f"[{_down(lower, 6)}, {_up(upper, 6)}]"
        rows.append((*place, exact, f"{100 * (upper / lower - 1):.3f} %"))
    return table(("n", "k", "ε0", "T", "δ", "exact ε of the pair lies in", "width"), rows)


def laplace() -> str:
    """Laplace reports, everybody in one round, beside other bounds."""
    found: dict[str, dict[str, Any]] = {}
    for row in result("benchmarks/peers")["answers"]:
        if row["law"] == "Laplace":
            found.setdefault(row["setting"]["kind"], {"setting": row["setting"], "ours": row["ours"]})[
                row["method"]
            ] = row["epsilon"]
    rows = (
        (
            f"{of['setting']['local_epsilon']:g}",
            _short(of["setting"]["population"]),
            _short(of["setting"]["delta"]),
            _up(of["ours"]["upper"]),
            f"{of['variation ratio']:.4g}",
            f"{of['blanket, BennettExact']:.4g}",
        )
        for of in found.values()
    )
    return table(("ε0", "n", "δ", "here", "variation ratio", "Bennett"), rows)


def gaussian_reports() -> str:
    """Gaussian reports by their likelihoods, beside ε0 and δ0 alone."""
    words = {"full": "{}", "without-replacement": "{} of {}", "poisson": "{} of {}, Poisson"}

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        known = of["clones"] is not None and of["clones"] < of["num_steps"] * of["local_epsilon"]
        return (
            f"{of['local_epsilon']:g}",
            _short(of["local_delta"]),
            words[of["sampling"]].format(f"{of['cohort']:,}", f"{of['population']:,}"),
            f"{of['num_steps']:,}",
            f"[{_down(of['lower'])}, {_up(of['upper'])}]",
            f"{of['upper'] / of['lower']:.3f}",
            _up(of["clones"], 3) if known else "none",
        )

    head = ("ε0", "δ0", "n", "T", "certified", "upper/lower", "clones")
    return table(head, (row(of) for of in _found("gaussian_reports")))


TABLES: Tables = {
    PROOFS: {
        "epochs": epochs,
        "records": records,
        "counted": counted,
        "groups": groups,
        "personal": personal,
        "crowd": crowd,
        "generic": generic,
        "oracles": oracles,
        "spreads": spreads,
        "mechanisms": mechanisms,
        "pairs": pairs,
    },
    NOISE: {"laplace": laplace, "gaussian reports": gaussian_reports},
}


def _protocols(part: str) -> Any:
    return result("benchmarks/protocols")[part]


def _charged(*asked: ShuffleRound | TaggedRound) -> ShuffleAccountant:
    """An accountant that was told of some rounds."""
    accountant = ShuffleAccountant()
    for each in asked:
        accountant.step(each)
    return accountant


def _epochs_and_frames() -> list[str]:
    """Sentences on two epochs, on frames and on random questions."""
    epoch = ShuffleRound(local_epsilon=2.0, population=4, cohort=1, sampling="epoch")
    frames, asked = _protocols("frames"), result("benchmarks/accounting_fuzz")
    assert not asked["wrong"]
    assert not asked["loose"]
    assert not any(of[kind]["shortened"] for of in frames for kind in ("dense", "one number"))
    shortened = sum(of["runs"]["shortened"] for of in frames)
    most = max(of["runs"]["longest"] / of["limit"] for of in frames)
    return [
        f"two epochs in fresh orders have at most {_up(_charged(epoch, epoch).delta(1.2).upper)}",
        f"the frame are up to {max(of['columns']['longest'] for of in frames):.1f} times too long",
        f"Of {sum(of['runs']['vectors'] for of in frames)} vectors of a run of 4 to 64 equal numbers and "
        f"zeros, at d of 256, 1,024 and 4,096, {shortened} were shortened, by at most "
        f"{100 * (most - 1):.1f} per cent;",
        f"in its recorded run of {asked['settings']} questions, the longest took "
        f"{asked['slowest'][0]['processor_s']:.1f} s",
    ]


def _sums() -> list[str]:
    """Sentences on sums of coins."""
    rows, single, hidden = _protocols("coins"), _protocols("single_sums"), _protocols("secret")
    assert {f"{100 * (of['with_rounding'] - 1):.0f}" for of in rows} == {"2"}
    saved = 1 - (hidden["secret"]["noise"] / hidden["drawn"]["noise"]) ** 2
    assert abs(saved - 1 / 3) < 0.02
    widths = [100 * (of["epsilon"][1] / of["epsilon"][0] - 1) for of in rows]
    loud, louder = single["loud"]
    lower, upper = single["sampled"]["epsilon"]
    return [
        "the Gaussian mechanism with two per cent more noise",
        "A third of the noise's variance is saved for an observer as well",
        f"a noise multiplier of {loud['noise']:g} is ε = {_up(loud['upper'])} at δ = 1e-5 and one of "
        f"{louder['noise']:g} is ε = {_up(louder['upper'], 3)}, where the Gaussian alone has "
        f"{_up(loud['gaussian'])} and {_up(louder['gaussian'], 3)}",
        f"between {min(widths):.1f} and {max(widths):.1f} % of ε for the sums of the next table",
        f"({_down(lower, 3)} against {_up(upper, 3)} at T = 1,000, k = 10⁴ of n = 10⁵, a noise multiplier of "
        f"{single['sampled']['noise']:g}, δ = 1e-5)",
    ]


def _limit(weight: int, *, length: int, bit_epsilon: float) -> float:
    """Probability that a flipped vector with one bit set has more ones than that, symmetric encoding."""
    flip = 1 / (math.exp(bit_epsilon) + 1)
    above, at = binom.sf(weight, length - 1, flip), binom.pmf(weight, length - 1, flip)
    return float(above + (1 - flip) * at)


def _tags() -> list[str]:
    """Sentences on tagged messages and on counted unary encoding."""
    several, few = _protocols("tags_on_samples")
    ratios = [f"{of['epsilon'][1] / of['epsilon'][0]:.2f}" for of in (several, few)]
    place: dict[str, Any] = {
        "population": 20,
        "cohort": 1,
        "opposite": True,
        "sampling": Sampling.WITHOUT_REPLACEMENT,
    }

    def of_tags(count: int) -> TaggedRound:
        return TaggedRound(tags=(Tag(local_epsilon=1.5, count=count, places=False),), **place)

    together = _charged(of_tags(10)).delta(1.0)
    apart = _charged(*[of_tags(1)] * 10).delta(1.0)
    assert apart.upper < together.lower / 2
    beside = [
        of["ball"]["over_gaussian"] / of["vector"]["over_gaussian"]
        for of in _protocols("beside_the_gaussian")
        if of["dim"] < 10**5
    ]
    planes = [of["planes"] for of in _protocols("tagged") if of["name"] != "BallSum"]
    assert (min(planes), max(planes)) == (1, 5)
    symmetric, optimal = _protocols("draft")[2]["epsilon"], _protocols("single_sums")["optimal"]
    held, limit, flip = 2, 2, 1 / (math.e + 1)  # of three bits, at v = 1

    def kept(ones: int) -> float:
        """Probability that three flipped bits, of which so many are set, have at most two ones."""
        return 1 - (1 - flip) ** ones * flip ** (3 - ones)

    costs = 3.0 + math.log(kept(1) / kept(held))
    allowed = [
        next(weight for weight in range(1_000) if 1e5 * _limit(weight, length=1_000, bit_epsilon=5.0) <= most)
        for most in (0.1, 2**-40)
    ]
    assert limit == held
    return [
        f"have δ(1) = {together.upper:.3f}, which the wrong way certifies as less than half of that",
        f"at k = 1,000 of n = 10⁴ certified ε is {ratios[0]} times the lower end for ten tags of v = 1, and "
        f"{ratios[1]} times for two, of v = 2 and 1",
        f"MMS {min(beside):.1f} to {max(beside):.1f} times as much",
        "as accurate as a trusted server at one to five bits per coordinate",
        f"[{_down(symmetric[0])}, {_up(symmetric[1])}] symmetric, [{_down(optimal[0])}, {_up(optimal[1])}] "
        "optimal",
        f"{costs:.2f} in place of 3 for two ones of three symmetric bits at v = 1",
        f"its limit is {allowed[0]} ones; n·f ≤ 2^-40 takes {allowed[1]}",
    ]


def _counts() -> list[str]:
    """Sentences on coefficients in a frame."""
    frames = _protocols("frames")
    usual = max(of[kind]["longest"] for of in frames for kind in ("dense", "one number"))
    return [
        f"is 1.00 to {usual:.2f} times that of x for dense vectors and single numbers, and for vectors along "
        f"the frame's own up to {max(of['columns']['longest'] for of in frames):.1f} times",
    ]


def sentences() -> Sentences:
    """Pieces of text with certified ε."""
    rows = result("benchmarks/pld_composition")
    first = {row["delta"]: row for row in rows if row["population"] == 10**6}

    def theirs(delta: float, *, optimistic: bool) -> list[float]:
        return [each["epsilon"] for each in first[delta]["dp_accounting"] if each["optimistic"] == optimistic]

    least = [first[delta]["shuffle_plugins"]["epsilon"][0] for delta in (1e-8, 1e-12, 1e-15)]
    low, lower = theirs(1e-12, optimistic=False), theirs(1e-15, optimistic=False)
    drawn = _found("epochs")["without-replacement"]
    renyi = [_up(of["renyi"]) for of in _found("pairs")]
    levels = {
        of["level"]: of
        for of in result("benchmarks/intervals")["intervals"]
        if of["setting"] == _MNIST and (of["mechanism"], of["dim"]) == ("laplace", 1)
    }
    half, more, most = ((_up(levels[x]["upper"]), _down(levels[x]["lower"])) for x in _LEVELS)
    return {
        PROOFS: [
            *_epochs_and_frames(),
            f"20 n/k rounds of k of n cost {_up(max(drawn))} at most",
            f"It gives {renyi[0]}, {renyi[1]} and {renyi[2]} on the rows above",
            f"its *pessimistic* answers are {min(low):.4f} to {max(low):.4f} at δ = 1e-12 "
            f"and {min(lower):.3f} to "
            f"{max(lower):.3f} at 1e-15, where ε is certified to be at least {_down(least[1], 5)} and "
            f"{_down(least[2], 5)}",
            f"gives {theirs(1e-8, optimistic=True)[0]:.3f} at 1e-8, where ε is at least {_down(least[0], 5)}",
        ],
        NOISE: [
            f"they are {half[0]} and {half[1]} at ε0 = 0.5, {more[0]} and {more[1]} at 1.5, "
            f"{most[0]} and {most[1]} at 4",
        ],
        SUMS: _sums(),
        TAGS: _tags(),
        COUNTS: _counts(),
    }
