"""What each protocol sends and how near it comes: numbers of the guides to protocols and of the proofs.

What is drawn comes from seeds, and nothing is timed, so a version gives the same numbers on every machine,
but for their last digits. docs/tables.py writes the tables from the results, and a test computes
some of them anew.

Usage: python benchmarks/protocols.py [PART ...]     (two minutes; with PARTs the others stay as they are)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from certified import gaussian_deviation, write_parts
from scipy.special import bdtrc

from shuffle_plugins.accounting import (
    FINE,
    LossComposition,
    PoissonBinomialRound,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
    Tag,
    TaggedRound,
    calibrate_local_epsilon,
    gaussian_losses,
    zero_between,
)
from shuffle_plugins.compressors import KashinFrame, kashin_stretch
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CountedUnary,
    CubeSum,
    DecoyHistogram,
    DecoyVectorSum,
    FrequencyEstimation,
    HeavyHitters,
    HistogramSum,
    LaplaceHistogram,
    LaplaceScalarSum,
    LaplaceVectorSum,
    PoissonBinomialSum,
    ScalarSum,
    SplitSum,
    UnaryL1Sum,
    VectorSum,
    published,
)
from shuffle_plugins.randomness import SeededRandomness

RESULTS = Path(__file__).parent / "results" / "protocols.json"
ASKED = {"epsilon": 1.0, "delta": 1e-6}
BALL = {"dim": 1_000, "cohort": 10_000}
MNIST = {"dim": 6_130, "epsilon": 2.93, "delta": 1e-5, "num_steps": 300}
CLIENTS, DRAWN = 60_000, 4_096


def sent(protocol: Any) -> dict[str, Any]:
    """Messages and bits of one client."""
    return {"messages": protocol.messages_per_client, "bits": protocol.bits_per_report}


def gaussian(dim: int, sensitivity: float, *, epsilon: float = 1.0, delta: float = 1e-6) -> float:
    """Squared error of a trusted server that adds Gaussian noise to a sum."""
    return dim * (sensitivity * gaussian_deviation(target_epsilon=epsilon, delta=delta)) ** 2


def certified(protocol: Any, *, num_steps: int = 1, delta: float = 1e-6, **place: Any) -> list[float]:
    """Both ends of ε."""
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(**place), num_steps=num_steps)
    found = accountant.epsilon(delta)
    return [found.lower, found.upper]


def kinds() -> dict[str, dict[str, Any]]:
    """Every protocol at one setting."""
    clients, asked = BALL["cohort"], ASKED | {"cohort": BALL["cohort"]}
    sums = {
        "scalar": ScalarSum.calibrated(**asked),
        "split": SplitSum.calibrated(**asked),
        "vector": VectorSum.calibrated(dim=1_000, **asked),
        "ball": BallSum.calibrated(dim=1_000, **asked),
        "poisson": PoissonBinomialSum.calibrated(dim=1_000, **asked),
        "cube": CubeSum.calibrated(dim=1_000, **asked),
        "binary": BinarySum.calibrated(dim=1_000, **asked),
        "l1": UnaryL1Sum.calibrated(dim=100, **asked),
        "laplace scalar": LaplaceScalarSum.calibrated(**asked),
        "laplace vector": LaplaceVectorSum.calibrated(dim=100, **asked),
        "decoy vector": DecoyVectorSum.calibrated(dim=100, **asked),
    }
    histograms = {
        "frequencies": FrequencyEstimation.calibrated(categories=100, **asked),
        "laplace": LaplaceHistogram.calibrated(categories=100, **asked),
        "decoys": DecoyHistogram.calibrated(categories=100, **asked),
        "histogram": HistogramSum.calibrated(categories=100, **asked),
        "symmetric": CountedUnary.calibrated(length=100, **asked),
        "optimal": CountedUnary.calibrated(length=100, encoding="optimal", **asked),
    }
    found = {name: sent(each) | {"error": math.sqrt(each.worst_variance)} for name, each in sums.items()}
    found |= {
        name: sent(each) | {"error": clients * math.sqrt(each.squared_error)}
        for name, each in histograms.items()
    }
    search = HeavyHitters.calibrated(bits=32, **asked)
    found["heavy"] = sent(search.counts) | {"error": math.sqrt(search.counts.decoys)}
    decoys = {"decoys": histograms["decoys"], "decoy vector": sums["decoy vector"], "heavy": search.counts}
    for name, bits in decoys.items():
        found[name]["bits"] = bits.messages_per_client * bits.message_layout.bits  # blanks need not be sent
    return found


def without_a_sum() -> dict[str, Any]:
    """Error of a sum of vectors by a trusted server's Gaussian noise, and by a report of each client."""
    dim, clients = BALL["dim"], BALL["cohort"]
    reports = registry.get(
        "privunit",
        local_epsilon=calibrate_local_epsilon(
            target_epsilon=ASKED["epsilon"],
            delta=ASKED["delta"],
            mechanism="privunit",
            blanket_factory=lambda level: registry.blanket("privunit", local_epsilon=level, dim=dim),
            population=clients,
            cohort=clients,
            num_steps=1,
            channel_fixed=True,
        ),
        dim=dim,
    )
    return {
        "trusted_server": math.sqrt(gaussian(dim, 2.0)),
        "privunit": math.sqrt(clients * reports.worst_variance),
        "privunit_local_epsilon": reports.local_epsilon,
    }


def beside_the_gaussian() -> list[dict[str, Any]]:
    """Sums in an ℓ2 ball, and their variances over the Gaussian mechanism's."""
    rows: list[dict[str, Any]] = []
    for dim, clients, many in (
        (10, 1_000, ()),
        (100, 1_000, (3, 15)),
        (1_000, 10**4, (1, 7, 31)),
        (1_000, 10**5, (63,)),
        (10**4, 10**4, (1,)),
        (10**5, 10**4, (1,)),
    ):
        asked, central = ASKED | {"dim": dim, "cohort": clients}, gaussian(dim, 2.0)

        def over(protocol: Any, central: float = central) -> dict[str, Any]:
            return sent(protocol) | {"over_gaussian": protocol.worst_variance / central}

        rows.append(
            {
                "dim": dim,
                "clients": clients,
                "vector": over(VectorSum.calibrated(**asked)),
                "ball": over(BallSum.calibrated(**asked)),
                "poisson": {
                    str(bits): over(PoissonBinomialSum.calibrated(bits=bits, **asked)) for bits in many
                },
            }
        )
        print(rows[-1], flush=True)
    return rows


def several_sums() -> dict[str, Any]:
    """Noise of one sum of numbers where several are taken, and what equal noise costs."""
    rows = []
    for num_steps in (1, 3, 10, 30, 100):
        asked = ASKED | {"cohort": BALL["cohort"], "num_steps": num_steps}
        pair = {"split": SplitSum.calibrated(**asked), "scalar": ScalarSum.calibrated(**asked)}
        rows.append(
            {"num_steps": num_steps} | {name: math.sqrt(each.noise_variance) for name, each in pair.items()}
        )
    aim = ScalarSum.calibrated(cohort=BALL["cohort"], **ASKED).noise_variance

    def noisier(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        split = SplitSum.calibrated(cohort=BALL["cohort"], epsilon=epsilon, delta=ASKED["delta"])
        return math.log(split.noise_variance / aim)

    epsilon = math.exp(zero_between(noisier, math.log(0.1), 0.0, xtol=1e-4))
    split = SplitSum.calibrated(cohort=BALL["cohort"], epsilon=epsilon, delta=ASKED["delta"])
    return {"rows": rows, "equal": sent(split) | {"variance": split.noise_variance, "epsilon": epsilon}}


def small() -> dict[str, Any]:
    """The vector sum of the guide's example."""
    asked = ASKED | {"dim": 5, "cohort": 200}
    plain = VectorSum.calibrated(**asked)
    short = VectorSum.calibrated(overhead=0.1, **asked)
    more = math.sqrt(short.worst_variance / plain.worst_variance) - 1
    return {"plain": sent(plain), "short": sent(short) | {"more_error": more}}


def tagged() -> list[dict[str, Any]]:
    """Sums of tagged bits."""
    cases: list[tuple[str, Any, int, int, dict[str, int]]] = [
        ("BinarySum", BinarySum, 1_000, 10**4, {}),
        ("CubeSum", CubeSum, 10, 10**4, {}),
        ("CubeSum", CubeSum, 1_000, 10**4, {}),
        ("CubeSum", CubeSum, 1_000, 10**6, {}),
        ("CubeSum", CubeSum, 10**5, 10**4, {}),
        ("CubeSum", CubeSum, 1_000, 10**4, {"samples": 250}),
        ("BallSum", BallSum, 1_000, 10**4, {}),
        ("BallSum", BallSum, 10**5, 10**4, {}),
    ]
    rows = []
    for name, kind, dim, clients, more in cases:
        protocol = kind.calibrated(dim=dim, cohort=clients, **ASKED, **more)
        sensitivity = 2.0 if kind is BallSum else math.sqrt(dim) * (1 if kind is BinarySum else 2)
        lower, upper = certified(protocol)
        rows.append(
            {"name": name, "dim": dim, "clients": clients, "samples": more.get("samples")}
            | {"planes": protocol.levels, "blocks": protocol.samples, "bits": protocol.bits_per_report}
            | {"epsilon": [lower, upper]}
            | {"over_gaussian": protocol.worst_variance / gaussian(dim, sensitivity)}
        )
        print(rows[-1], flush=True)
    return rows


def thesis() -> dict[str, float]:
    """The thesis's own budget, for one bit plane."""
    own = CubeSum.calibrated(**BALL, **ASKED)
    budget = published.multi_message_budget(cohort=BALL["cohort"], samples=own.samples, levels=1, **ASKED)
    theirs = CubeSum(**BALL, budget=budget, levels=1, samples=own.samples)
    return {
        "epsilon": certified(theirs)[1],
        "variance_over_ours": theirs.worst_variance / own.worst_variance,
    }


def bits_round(crowd: int, flip: float) -> PoissonBinomialRound:
    """One bit of each client, which so many others hide."""
    clients = crowd + 1
    return PoissonBinomialRound(
        population=clients, cohort=clients, dim=1, bits=1, flip=flip, distance=2.0, sampling=Sampling.FULL
    )


def covers() -> dict[str, Any]:
    """Gaussians that cover fair coins, and those that cover counts of leaning bits."""
    coins = []
    for power in (4, 6, 8):
        trials = 10**power
        cover = SumRound(
            sensitivity=1.0, attained=1, trials=trials, dim=1, population=trials, cohort=trials
        ).cover()
        coins.append(
            {"power": power, "variance": cover.deviation**2 / (10**power / 4), "distance": cover.distance}
        )
    leaning = []
    for local_epsilon in (0.02, 0.1, 0.26, 0.69):
        flip = 1 / (math.exp(local_epsilon) + 1)
        leaning.append(
            {
                "local_epsilon": local_epsilon,
                "over_information": [
                    bits_round(crowd, flip).cover().shift ** 2
                    * (4 * crowd * flip * (1 - flip))
                    / (1 - 2 * flip) ** 2
                    for crowd in (10**3, 10**4, 10**5, 10**7)
                ],
            }
        )
    return {"coins": coins, "bits": leaning}


def from_below() -> list[dict[str, Any]]:
    """Lower over upper ends of Poisson binomial sums calibrated for everybody, and for a tenth of all."""
    rows = []
    for dim, clients, bits, num_steps in (
        (100, 1_000, 3, 1),
        (100, 1_000, 15, 1),
        (100, 1_000, 3, 10),
        (1_000, 10**4, 1, 1),
        (1_000, 10**4, 7, 1),
    ):
        asked = ASKED | {"dim": dim, "cohort": clients, "bits": bits, "num_steps": num_steps}
        tenth = {"population": 10 * clients}
        protocol = PoissonBinomialSum.calibrated(**asked)
        own = PoissonBinomialSum.calibrated(**asked, **tenth)
        shares = {}
        for name, of, place in (
            ("everybody", protocol, {}),
            ("sampled", protocol, tenth),
            ("secret", protocol, {"participation": 0.5}),
            ("sampled_own", own, tenth),
        ):
            lower, upper = certified(of, num_steps=num_steps, **place)
            shares[name] = lower / upper
        rows.append({"dim": dim, "clients": clients, "bits": bits, "num_steps": num_steps} | shares)
        print(rows[-1], flush=True)
    return rows


def coins() -> list[dict[str, Any]]:
    """Sums of coins beside the analytic Gaussian and the paper's own constants."""
    rows = []
    for dim, clients in ((1_000, 10**4), (10**5, 10**6), (10, 100)):
        asked = ASKED | {"dim": dim, "cohort": clients}
        protocol, central = VectorSum.calibrated(**asked), gaussian(dim, 2.0)
        paper = published.vector_sum(**asked)
        rows.append(
            {"dim": dim, "clients": clients, "bits": protocol.bits_per_report}
            | {"noise": protocol.noise_variance * dim / central}
            | {"with_rounding": protocol.worst_variance / central}
            | {"paper_over_ours": paper.noise_variance / protocol.noise_variance}
            | {"epsilon": certified(protocol)}
        )
    return rows


def secret() -> dict[str, Any]:
    """What it saves if the clients of the MNIST run take part in secret."""
    steps, delta = int(MNIST["num_steps"]), float(MNIST["delta"])
    rate = DRAWN / CLIENTS
    drawn = VectorSum.calibrated(**MNIST, cohort=DRAWN, population=CLIENTS)
    own = VectorSum.calibrated(**MNIST, cohort=CLIENTS, participation=rate)
    # As much noise, tossed by everybody: a multiple of the same lattice step.
    alike = VectorSum(
        dim=drawn.dim, cohort=CLIENTS, levels=drawn.levels, coins=-(-drawn.coins * DRAWN // CLIENTS)
    )

    def most_often(unlikely: float = 1e-3) -> int:
        return next(each for each in range(steps) if CLIENTS * bdtrc(each, steps, rate) < unlikely)

    mean = math.ceil(steps * rate)

    def upper(protocol: VectorSum, num_steps: int, **place: Any) -> float:
        return certified(protocol, num_steps=num_steps, delta=delta, **place)[1]

    def noise(protocol: VectorSum) -> float:
        return math.sqrt(protocol.noise_variance) / protocol.radius

    return {
        "drawn": sent(drawn)
        | {"noise": noise(drawn), "coins": drawn.coins}
        | {"observer": upper(drawn, steps, population=CLIENTS)}
        | {"server": [[each, upper(drawn, each)] for each in (mean, most_often())]},
        "alike": {"noise": noise(alike), "both": upper(alike, steps, participation=rate)},
        "secret": sent(own)
        | {"noise": noise(own), "coins": own.coins, "both": upper(own, steps, participation=rate)},
        "everybody": {"noise": noise(own), "both": upper(own, steps)},
    }


def draft() -> list[dict[str, Any]]:
    """Histograms at the parameters of the internet draft's table: 100,000 clients, δ = 1e-9."""
    clients, length, delta, held = 100_000, 1_000, 1e-9, 10_000
    rows = []
    for bit_epsilon, printed in ((5.0, 0.317), (6.5, 0.906), (7.0, 1.528)):
        counted = CountedUnary(length=length, cohort=clients, bit_epsilon=bit_epsilon)
        spent = certified(counted, delta=delta)
        whole = ShuffleAccountant()
        whole.step(
            ShuffleRound(
                local_epsilon=2 * bit_epsilon,
                population=clients,
                cohort=clients,
                sampling=Sampling.FULL,
                mechanism="rappor",
                blanket=registry.blanket("rappor", local_epsilon=2 * bit_epsilon, dim=length),
                channel_fixed=True,
            )
        )
        shuffled = whole.epsilon(delta)
        optimal = CountedUnary.calibrated(
            length=length, cohort=clients, epsilon=spent[1], delta=delta, encoding="optimal"
        )
        rows.append(
            {"bit_epsilon": bit_epsilon, "printed": printed, "epsilon": spent}
            | {"deviation": math.sqrt(counted.variance(0.0)), "held": held}
            | {"shuffled_whole": [shuffled.lower, shuffled.upper]}
            | {"optimal_local_epsilon": optimal.bit_epsilon, "symmetric_local_epsilon": 2 * bit_epsilon}
            | {"optimal_deviation": [math.sqrt(optimal.variance(float(each))) for each in (0, held)]}
        )
        print(rows[-1], flush=True)
    return rows


def tags_on_samples() -> list[dict[str, Any]]:
    """Both ends of counted bits under a few tags, where a tenth of 10,000 clients is drawn."""
    rows = []
    for tags in (
        (Tag(local_epsilon=1.0, count=10, places=False),),
        tuple(Tag(local_epsilon=level, count=1, places=False) for level in (2.0, 1.0)),
    ):
        accountant = ShuffleAccountant()
        accountant.step(
            TaggedRound(
                tags=tags,
                population=10**4,
                cohort=10**3,
                opposite=True,
                sampling=Sampling.WITHOUT_REPLACEMENT,
            )
        )
        found = accountant.epsilon(ASKED["delta"])
        rows.append({"tags": sum(tag.count for tag in tags), "epsilon": [found.lower, found.upper]})
    return rows


def single_sums() -> dict[str, Any]:
    """Sums of little noise beside the Gaussian alone, and two whose ends stay apart on samples."""
    place, delta = {"population": CLIENTS}, 1e-5
    rows = []
    for noise in (1.1, 0.56):
        loud = VectorSum.with_noise(dim=200_000, cohort=600, noise_multiplier=noise)
        alone = gaussian_losses(noise_multiplier=noise / 2, sampling_rate=0.01, resolution=FINE)
        accountant = ShuffleAccountant()
        accountant.step(loud.round(**place), num_steps=1_000)
        rows.append(
            {"noise": noise, "upper": accountant.epsilon(delta, lower=False).upper}
            | {"gaussian": LossComposition([alone], [1_000]).epsilon(delta)}
        )
    half = VectorSum.with_noise(dim=1_000, cohort=10**4, noise_multiplier=8.0)
    flips = UnaryL1Sum.with_noise(dim=1_000, cohort=10**4, noise_multiplier=4.0, failure=1e-25)
    return {
        "loud": rows,
        "sampled": {
            "noise": 8.0,
            "epsilon": certified(half, num_steps=1_000, delta=delta, population=10**5),
        },
        "unary": {
            "flips": flips.cohort * flips.other,
            "epsilon": certified(flips, delta=delta, **place),
        },
        "optimal": certified(
            CountedUnary(length=1_000, cohort=100_000, bit_epsilon=7.0, encoding="optimal"), delta=1e-9
        ),
    }


def frames() -> list[dict[str, Any]]:
    """How long coefficients in a Kashin frame are over their vector, for vectors of several kinds."""
    torch.set_num_threads(1)
    rows = []
    for dim in (256, 1_024, 4_096):
        coins = torch.Generator().manual_seed(dim)
        frame = KashinFrame(dim=dim, seed=0)
        limit = kashin_stretch(dim, level=frame.level)
        columns = torch.randint(frame.size, (64,), generator=coins)
        runs = torch.zeros(300, dim)
        for row, length in zip(runs, (4, 8, 16, 32, 64) * 60, strict=True):
            start = int(torch.randint(dim - length, (), generator=coins))
            row[start : start + length] = 1.0
        kinds = {
            "columns": frame.reconstruct(torch.eye(frame.size)[columns]),
            "dense": torch.randn(300, dim, generator=coins),
            "one number": torch.eye(dim)[:200],
            "runs": runs,
        }
        found = {"dim": dim, "limit": limit}
        for kind, vectors in kinds.items():
            longer = frame.represent(vectors).norm(dim=1) / vectors.norm(dim=1)
            found[kind] = {
                "vectors": len(vectors),
                "longest": float(longer.max()),
                "shortened": int((longer > limit).sum()),
            }
        rows.append(found)
    return rows


def histograms() -> dict[str, Any]:
    """Errors over the trusted server's Gaussian, ε0 of reports, and clients of one value that are found."""
    ratios: dict[str, list[float]] = {}
    for clients in (10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6):
        asked = ASKED | {"cohort": clients}
        central = published.central_gaussian(categories=100, **asked)
        rare = {
            encoding: CountedUnary.calibrated(length=100, encoding=encoding, **asked).variance(0.0)
            for encoding in ("symmetric", "optimal")
        }
        squares = {name: 100 * each / clients**2 for name, each in rare.items()}
        squares["frequencies"] = FrequencyEstimation.calibrated(categories=100, **asked).squared_error
        squares["histogram"] = HistogramSum.calibrated(categories=100, **asked).squared_error
        squares["laplace"] = LaplaceHistogram.calibrated(categories=100, **asked).squared_error
        squares["decoys"] = DecoyHistogram.calibrated(categories=100, **asked).squared_error
        for name, each in squares.items():
            ratios.setdefault(name, []).append(math.sqrt(each / central))
    asked = ASKED | {"cohort": 10**5}
    local = {
        encoding: CountedUnary.calibrated(length=100, encoding=encoding, **asked).round().local_epsilon
        for encoding in ("symmetric", "optimal")
    }
    searches = {
        f"{kind.name}, {'groups' if groups else 'all'}": HeavyHitters.calibrated(
            bits=32, kind=kind, groups=groups, **asked
        )
        for kind in (DecoyHistogram, HistogramSum, LaplaceHistogram)
        for groups in (False, True)
    }
    return {
        "over_gaussian": ratios,
        "local_epsilon": local,
        "detectable": {name: each.detectable(confidence=0.95) for name, each in searches.items()},
        "rounds": {name: each.rounds for name, each in searches.items()},
    }


def shared_noise() -> dict[str, Any]:
    """Histograms of K = 100: errors in clients as drawn and by formula, in several rounds, with drop-outs."""
    clients, categories = BALL["cohort"], 100
    kinds = {"laplace": LaplaceHistogram, "decoys": DecoyHistogram, "histogram": HistogramSum}
    held = torch.arange(clients).square() % categories
    truth = torch.bincount(held, minlength=categories)

    def drawn(protocol: Any) -> float:
        errors = [
            (protocol.randomize_histogram(held, randomness=SeededRandomness(seed)).counts - truth).square()
            for seed in range(400)
        ]
        return float(torch.stack(errors).sum(dim=1).mean().sqrt())

    asked = {"categories": categories, "cohort": clients, "epsilon": 1.0}
    single = {name: kind.calibrated(**asked, delta=1e-6) for name, kind in kinds.items()}
    many = {
        str(steps): {
            name: math.sqrt(kind.calibrated(**asked, delta=1e-6, num_steps=steps).worst_variance)
            for name, kind in kinds.items()
        }
        for steps in (1, 2, 3, 5, 10, 30, 100)
    }
    laplace = single["laplace"]
    more = DecoyHistogram.calibrated(**asked | {"cohort": 10 * clients}, delta=1e-6)
    return {
        "error": {name: math.sqrt(each.worst_variance) for name, each in single.items()},
        "drawn": {name: drawn(each) for name, each in single.items()},
        "epsilon": {name: certified(each) for name, each in single.items()},
        "messages": {str(each.cohort): each.messages_per_client for each in (single["decoys"], more)},
        "decoys": single["decoys"].decoys,
        "rounds": many,
        "tiny delta": math.sqrt(LaplaceHistogram.calibrated(**asked, delta=1e-12).worst_variance),
        "missing": {
            str(share): laplace.round(cohort=round(clients * (1 - share))).pure_epsilon
            for share in (0.01, 0.1, 0.2, 0.5)
        },
        "provided": math.sqrt(
            LaplaceHistogram.calibrated(**asked, delta=1e-6, honest_fraction=0.8).worst_variance
        ),
    }


def largest() -> list[dict[str, int]]:
    """The largest count of a client of a vector sum with a noise multiplier of 4."""
    rows = []
    for clients in (10**4, 10**5, 10**6, 10**7):
        for dim in (13_706, 10**6, 10**7):
            counts = VectorSum.with_noise(dim=dim, cohort=clients, noise_multiplier=4.0).counts
            rows.append({"clients": clients, "dim": dim, "largest": counts.highest - counts.lowest})
    return rows


def main() -> None:
    parts = (
        kinds,
        without_a_sum,
        beside_the_gaussian,
        several_sums,
        small,
        tagged,
        thesis,
        covers,
        from_below,
        coins,
        secret,
        draft,
        tags_on_samples,
        single_sums,
        frames,
        histograms,
        shared_noise,
        largest,
    )
    write_parts(parts, RESULTS)


if __name__ == "__main__":
    main()
