"""Mechanisms: error, bits and time."""

from __future__ import annotations

import math
from functools import cache

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.cli.output import times
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import MechanismSpec, get
from shuffle_plugins.planning import Choice, choices, mixed_round_costs, report_error

BENCHMARKS = "docs/reference/benchmarks.md"
MECHANISMS = "docs/guides/mechanisms.md"
OTHERS = "docs/reference/other-mechanisms.md"

LOCAL_EPSILON, DIM = 2.0, 13_706


@cache
def _one_report() -> tuple[Choice, ...]:
    """All mechanisms for vectors of the l2 ball, as the command on the page compares them."""
    found, _ = choices(local_epsilon=LOCAL_EPSILON, dim=DIM, norm="l2")
    return found


_THEIR_REPORTS = {
    "privunit": ("a unit vector that leans towards x", "Bhowmick et al. 2018; Asi, Feldman, Talwar 2022"),
    "privunit-g": ("a normal vector that leans towards x", "Asi, Feldman, Talwar 2022"),
    "privunit-g-seed": ("the seed of such a vector", "Feldman, Talwar 2021"),
    "blanket-mixed-gaussian": ("a normal vector, favoured in eight steps", "after Takagi, Liew 2026"),
    "blanket-mixed-gaussian-seed": ("the seed of such a vector", ""),
    "gaussian": ("noise on every coordinate, (ε0, δ0)", "Balle, Wang 2018"),
    "discrete-gaussian": ("discrete noise, (ε0, δ0)", "Canonne, Kamath, Steinke 2020"),
    "linf-block": ("neighbouring signs as one pattern", "here"),
    "l1-hadamard": ("a sign of one Hadamard coefficient", "Girgis's thesis, Alg. 3.4.1"),
    "laplace": ("noise on every coordinate", "Dwork et al. 2006"),
    "discrete-laplace": ("discrete noise on every coordinate", "Canonne, Kamath, Steinke 2020"),
}
_ELSEWHERE = "[other](../reference/other-mechanisms.md)"
_BALLS = {"l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞"}


def one_report() -> str:
    """What one report is, its error and bits, computed."""
    least = _one_report()[0].variance
    return table(
        ("name", "ball", "one report", "× least error", "bits", "source"),
        (
            (
                f"`{of.name}`",
                _BALLS[of.domain],
                report,
                times(of.variance / least),
                f"{of.bits:,}",
                source,
            )
            for of in _one_report()
            for report, source in (_THEIR_REPORTS.get(of.name, (_ELSEWHERE, "")),)
        ),
    )


def equal_epsilon() -> str:
    """PrivUnit and the blanket-mixed Gaussian mechanism at the same ε after shuffling."""
    return table(
        ("ε ≤", "ε0 of `privunit`", "ε0 of `blanket-mixed-gaussian`", "its error, over that of `privunit`"),
        (
            (
                rounded(of["epsilon"][1], up=True, digits=3),
                f"{of['local_epsilon']:g}",
                rounded(of["mixed_local_epsilon"], up=False),
                f"{of['mixed_variance'] / of['variance']:.2f}",
            )
            for of in result("benchmarks/mechanisms")["shuffled"]
        ),
    )


SEEDED = ("privunit-g-seed", "blanket-mixed-gaussian-seed")


def seeds() -> str:
    """What a client spends on the search for a seed."""
    found = {
        (of["mechanism"], of["local_epsilon"]): of
        for of in result("benchmarks/mechanisms")["seeds"]["searches"]
    }
    rows = []
    for level in sorted({level for _, level in found}):
        both = [found[name, level] for name in SEEDED]
        ratio = max(of["variance_over_whole_vectors"] for of in both)
        searches = (f"{of['expected_tries']:.3g} tries, {of['milliseconds']:.2g} ms" for of in both)
        rows.append((f"{level:g}", *searches, f"{ratio:.4f}"))
    return table(("ε0", *(f"`{name}`" for name in SEEDED), "error over that of the whole vector"), rows)


_OTHERS = (
    "linf-coordinate",
    "sampled-bits",
    "linf-bit-planes",
    "l2-bit-planes",
    "sqkr",
    "l2-block",
    "projunit",
)
_BESIDE = ("linf-block", "l1-hadamard", "laplace", "discrete-laplace")
_LEVELS = (0.5, 1.0, 2.0, 4.0, 6.0)


def beside_seeds() -> str:
    """Errors of other mechanisms over that of a seed, on the balls that they are made for."""

    def row(name: str) -> tuple[str, ...]:
        norm = get(name, local_epsilon=1.0, dim=DIM).domain
        pairs = [
            [
                report_error(each, local_epsilon=level, dim=DIM, radius=1.0, norm=norm)
                for each in (name, SEEDED[0])
            ]
            for level in _LEVELS
        ]
        ratios = [own.variance / seed.variance for own, seed in pairs]
        bits = pairs[_LEVELS.index(4.0)][0].bits
        return f"`{name}`", norm, f"{bits:,}", *(f"{ratio:.3g}" for ratio in ratios)

    head = ("name", "ball", "bits", *(f"ε0 = {level:g}" for level in _LEVELS))
    return table(head, (row(name) for name in (*_OTHERS, *_BESIDE)))


def _spread(values: list[float], digits: int) -> str:
    """Least and most of some numbers, rounded, or the one that both are."""
    ends = [f"{value:.{digits}f}" for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


_ENCODERS = (
    ("linf-coordinate", "linf-block", "linf-bit-planes", "sampled-bits"),
    ("l2-bit-planes",),
    ("l1-hadamard",),
    ("l2-block, rotation", "sqkr, rotation"),
    ("l2-block",),
)


def encoding() -> str:
    """Time and memory of randomising a batch, beside a copy of it."""
    found = {of["mechanism"]: of for of in result("benchmarks/mechanisms")["encoding"]}

    def spread(values: list[float], digits: int) -> str:
        return _spread(values, digits if max(values) < 10 else 0)

    def row(names: tuple[str, ...]) -> tuple[str, ...]:
        which = [found[name] for name in names]
        bare = ", ".join(f"`{name.partition(',')[0]}`" for name in names)
        frame = " with a rotation" if names[0].endswith("rotation") else ""
        frame = " with its Kashin frame" if names == ("l2-block",) else frame
        memory = [of["peak_beyond_batch_and_reports"] / 1e6 for of in which]
        return (
            bare + frame,
            spread([of["over_copy"] for of in which], 1),
            spread([of["over_read"] for of in which], 1),
            f"{_spread(memory, 0)} MB",
        )

    return table(
        ("mechanism", "over a copy", "over a read", "peak memory"), (row(each) for each in _ENCODERS)
    )


def short() -> str:
    """Error of the best report of at most 15 bits, over that of one sign."""
    rows = result("benchmarks/mechanisms")["short"]
    equal = max(row["local_epsilon"] for row in rows if row["ratio"] > 0.995)
    better = [row for row in rows if row["local_epsilon"] > equal]
    head = ("ε0", f"≤ {equal:g}", *(f"{row['local_epsilon']:g}" for row in better))
    return table(head, [("ratio", "1", *(f"{row['ratio']:.2f}" for row in better))])


_PEERS = (
    ("fht-cpu", "fht-cpu 1.0.1", ""),
    ("ffht-unofficial", "FFHT (ffht-unofficial 0.3)", ""),
    ("hadamard-transform", "hadamard-transform 0.2.0", ""),
    ("pyfwht", "pyfwht 2.0.1, float64", "float64, "),
)


def hadamard() -> str:
    """Other Hadamard transforms' time over ours."""
    found = result("benchmarks/hadamard")["a peer's time over ours"]

    def cell(peer: str, what: str) -> str:
        of = found.get(what, {}).get(peer)
        if of is None:
            return ""
        least, mean, most = (of[name] for name in ("least", "geometric mean", "largest"))
        digits = 2 if mean < 2 else 1 if mean < 10 else 0
        return f"{mean:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"

    rows = (
        (
            name,
            cell(peer, f"in place, {kind}one row"),
            cell(peer, f"in place, {kind}batches of 10 and more"),
            "" if kind else cell(peer, "new tensor, one row"),
            "" if kind else cell(peer, "new tensor, batches of 10 and more"),
        )
        for peer, name, kind in _PEERS
    )
    head = (
        "peer",
        "one row in place",
        "batches of 10 to 1000 in place",
        "one row, new tensor",
        "batches, new tensor",
    )
    return table(head, rows)


def kernels() -> str:
    """Kernels on a GPU: time, share of a copy's bandwidth, and how much longer operations of torch take."""
    found = result("benchmarks/gpu_kernels")["kernels"]

    def row(what: str, names: tuple[str, ...], digits: int, passes: int = 1) -> tuple[str, ...]:
        share = _spread([100 * passes * found[name]["of_copy"] for name in names], 0)
        torch_path = [f"{name}, torch path" for name in names]
        slower = [
            found[path]["ms"] / found[name]["ms"]
            for name, path in zip(names, torch_path, strict=True)
            if path in found
        ]
        return (
            what,
            f"{_spread([found[name]['ms'] for name in names], digits)} ms",
            f"{share} %" + (" of half of it" if passes == 2 else ""),
            f"{_spread(slower, 0)} times slower" if slower else "",
        )

    sizes = [int(name.split()[1]) for name in found if name.startswith("transform") and "torch" not in name]
    once = tuple(f"transform {size}" for size in sizes if size < 2**15)
    twice = tuple(f"transform {size}" for size in sizes if size > 2**15)
    encode = "encode signs 10000 x 13706"
    words = found["keystream words"]
    rows = [
        row("transform, 2^28 values, rows of 2^5 to 2^14", once, 2),
        row("rows of 2^15", ("transform 32768",), 2),
        row("rows of 2^16 and 2^20, which move twice", twice, 2, passes=2),
        ("keystream, 1 GB of words", f"{words['ms']:.1f} ms", f"{words['GB_per_s']:,.0f} GB/s", ""),
        row("`encode_signs`, 10,000 × 13,706; ChaCha20 is the limit", (encode,), 1),
        row(
            "`pack_signs`, `unpack_signs`, 10,000 × 16,384",
            ("pack signs 10000 x 16384", "unpack signs 10000 x 16384"),
            2,
        ),
    ]
    return table(("", "time", "of the copy's bandwidth", "the same in torch operations"), rows)


TABLES: Tables = {
    MECHANISMS: {"one report": one_report},
    OTHERS: {"beside seeds": beside_seeds},
    BENCHMARKS: {
        "kernels": kernels,
        "encoding": encoding,
        "seeds": seeds,
        "equal epsilon": equal_epsilon,
        "at most 15 bits": short,
        "Hadamard": hadamard,
    },
}


def _short(value: float, digits: int) -> str:
    """A number with so many digits, and zeros after them."""
    return f"{float(f'{value:.{digits}g}'):,.0f}"


def _transforms() -> list[str]:
    """Sentences on the Hadamard transform and on the sum of PrivUnit reports."""
    found, summed = result("benchmarks/hadamard"), result("benchmarks/privunit_sum")
    products = found["product with the matrix at 16384, us per row"]
    slower = {each["batch"]: each["matmul / ours"] for each in products}
    one = found["batch of 10000 x 13706 float32, in memcpys of it"]["1 coefficients"]
    ms = summed["ms"]
    passes = [spent for what, spent in ms.items() if "(one pass" in what]
    gram = {chunk: ms[f"chunk {chunk}: Gram matrices"] for chunk in (8, 16, 32, 64)}
    numbers = summed["clients"] * summed["dim"]
    return [
        f"takes {_short(slower[100], 2)} times longer in batches of 100 and {_short(slower[1], 2)} times for "
        "one row",
        f"takes {one:.2f} copies of that batch",
        f"{summed['dim']:,} parameters, {summed['clients']} samples, {summed['threads']} threads",
        f"are {numbers / 1e6:.0f} million normal numbers: {_short(ms['report by report'], 3)} ms",
        f"That takes {gram[64] + ms['chunk 64: the rest']:.0f} ms",
        f"the cheapest Gram matrices alone take {sum(passes) + min(gram.values()):.0f} ms",
    ]


def _mixed_seeds() -> str:
    """What a mixer takes for a million seed reports, and for as many of PrivUnit."""
    rows = {row["report_bytes"]: row for row in result("benchmarks/mixer")}  # the last of each has most
    short, long = (rows[size] for size in (_wire_bytes(SEEDED[0], 4.0), 54_869))
    each = [mixed_round_costs(clients=2, report_bytes=row["report_bytes"])[0].sent for row in (short, long)]
    minutes = [1e6 / row["reports_per_second"] / 60 for row in (short, long)]
    return (
        f"A mixer takes {short['reports_per_second']:,} seed reports a second, in {short['peak_mib']} MiB, "
        f"{short['peak_mib_with_enrolled_keys_alone']} of them for the program and enrolled keys "
        f"(measured with {short['reports']:,}): {minutes[0]:.1f} minutes and {each[0] / 1e3:.2f} GB of "
        f"envelopes for 10^6. Of `privunit`, {long['report_bytes'] / 1e3:.0f} kB each, it takes "
        f"{long['reports_per_second']:,} a second (with {long['reports']:,}): {minutes[1]:.1f} minutes and "
        f"{each[1] / 1e3:.0f} GB for 10^6"
    )


def _searched_seeds() -> list[str]:
    """That clients who search send what is stated."""
    found = result("benchmarks/mechanisms")
    law, turn = found["seed_law"], found["seed_round"]
    errors = [turn[how]["error_over_formula"] for how in ("searched", "drawn")]
    return [
        f"{law[0]['draws']:,} seeds that were searched for at ε0 = {LOCAL_EPSILON:g} (d = {law[0]['dim']}) "
        "have the stated law along their record: "
        f"p = {min(of['chi_square_p'] for of in law):.2f} or more by χ², "
        f"{min(of['kolmogorov_smirnov_p'] for of in law):.3f} or more by Kolmogorov and Smirnov's test",
        f"In a round of {turn['reports']:,} clients (d = {turn['dim']:,}) the sum of searched seeds has "
        f"{errors[0]:.3f} times the squared error of its formula, a drawn one {errors[1]:.3f}; the standard "
        f"error is {turn['standard_error']:.3f}",
    ]


def _wire_bytes(name: str, local_epsilon: float) -> int:
    """Of one report, with its header."""
    return MechanismSpec(name=name, local_epsilon=local_epsilon).report_bytes(dim=DIM)


def _block_beside_privunit() -> str:
    """Error of `l2-block` over PrivUnit's at ε0 from 1 to 8."""
    asked = {"dim": DIM, "radius": 1.0, "norm": "l2"}
    pairs = [
        [report_error(name, local_epsilon=float(level), **asked) for name in ("l2-block", "privunit")]  # type: ignore[arg-type]
        for level in range(1, 9)
    ]
    ratios = [block.variance / least.variance for block, least in pairs]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def sentences() -> Sentences:
    """Pieces of text with errors and lengths of reports."""
    found = result("benchmarks/mechanisms")
    errors = {row["mechanism"]: row for row in found["errors"]}
    ratios, wire = [row["ratio"] for row in errors.values()], found["wire"]
    header = round(wire["report_bytes"] - wire["float32_bytes"] / wire["saving_without_header"])
    reports = {of.name: of for of in _one_report()}
    seed, least, folded = (reports[name] for name in ("privunit-g-seed", "privunit", "projunit"))
    assert least.variance == min(of.variance for of in reports.values())
    saved = [100 * (1 - of["mixed_variance"] / of["variance"]) for of in found["shuffled"]]
    shorter = {row["local_epsilon"]: f"{row['ratio']:.2f}" for row in found["short"]}
    times_privunit, summed = _block_beside_privunit(), found["seeds"]["sum"]
    sent = _wire_bytes(SEEDED[0], LOCAL_EPSILON)
    searches = [of for of in found["seeds"]["searches"] if of["mechanism"] == SEEDED[0]]
    tries = {of["local_epsilon"]: of["expected_tries"] for of in searches}
    sealed = mixed_round_costs(clients=2, report_bytes=sent)[0].sent
    longest = least.bits
    alone = result("benchmarks/protocols")["without_a_sum"]
    copied = {key: [each[f"{key}_seconds"] for each in found["encoding"]] for key in ("copy", "read")}
    (kashin,) = (each["seconds"] for each in found["encoding"] if each["mechanism"] == "l2-block")
    gaussian = reports["privunit-g"].variance / least.variance
    uncertain = max(row["standard_error"] for row in errors.values())
    threshold = math.log((3 - math.sqrt(2)) / (math.sqrt(2) - 1))  # see the docstring of `linf-block`
    gpu, step = result("benchmarks/gpu_kernels"), result("benchmarks/training_step")
    version = ".".join(gpu["torch"].split(".")[:2])
    return {
        "README.md": [
            f"**{seed.bits} bits instead of {longest:,}** for a gradient of {DIM:,} numbers, with "
            f"{seed.variance / least.variance:.2f} times the squared error of the most accurate mechanism "
            f"(at ε0 = {LOCAL_EPSILON:g}; "
            f"[all {len(errors)} mechanisms of one report]",
        ],
        MECHANISMS: [
            f"its error is {min(saved):.0f} to {max(saved):.0f} % smaller",
            f"A search takes {tries[2.0]:.0f} tries at ε0 = 2 and {tries[4.0]:.0f} at 4",
            f"a trusted server's error is {alone['trusted_server']:.0f} with Gaussian noise, and that of "
            f"`privunit` {alone['privunit']:,.0f} with one report",
        ],
        OTHERS: [
            f"better from ε0 = {threshold:.2f} on: {shorter[2.0]} times the error at ε0 = 2, "
            f"{shorter[4.0]} at 4",
            f"for {times_privunit} times PrivUnit's error (ε0 = 1 to 8)",
            f"{_wire_bytes('l2-block', 4.0)} instead of {sent}",
        ],
        "docs/guides/flower.md": [f"`privunit-g-seed`, which sends {sent} bytes whatever the model"],
        BENCHMARKS: [
            f"One NVIDIA H100 (80 GB), torch {version},",
            f"A device copy moves {gpu['copy_GB_per_s']:,.0f} GB/s",
            f"a convolutional network with {step['parameters']:,} parameters on {step['batch']:,} records",
            f"sums {summed['reports']:,} reports in {summed['seconds']:.1f} s, with "
            f"{summed['peak_beyond_reports'] / 1e6:.0f} MB beside them, where whole vectors would take "
            f"{summed['bytes_of_whole_vectors'] / 1e6:.0f} MB",
            f"A report in Flower is {1 + sent} bytes, or {sealed} sealed for a mix node",
            f"between {min(ratios):.4f} and {max(ratios):.4f} for all {len(ratios)} mechanisms, where the "
            f"standard errors are {100 * uncertain:.1f} % (one number) and below",
            f"`privunit-g` is at {gaussian:.4f} times PrivUnit, `projunit` at "
            f"{folded.variance / least.variance:.2f} (k = 4096, d = {DIM:,})",
            f"a copy of that batch took {_spread(copied['copy'], 2)} s, one pass of reading it "
            f"{_spread(copied['read'], 2)} s",
            f"seven transforms of twice the length, {1e3 * kashin / 10_000:.1f} ms a row",
            f"at d = {wire['dim']:,} are {wire['report_bytes']:,} bytes, where float32 vectors are "
            f"{wire['float32_bytes']:,}: {wire['saving']:,.0f} times fewer, and the thesis's "
            f"{wire['saving_without_header']:,.0f} without the {header} bytes of header",
            f"Below ε0 = {threshold:.2f} no",
            *_transforms(),
            _mixed_seeds(),
            *_searched_seeds(),
        ],
    }
