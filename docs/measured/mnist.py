"""MNIST runs: those of the papers, the two recipes, and what came out of all training runs."""

from __future__ import annotations

from typing import Any

from measured.parts import Sentences, Tables, interval, percent, result, table
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.core import rounded

MNIST = "docs/reference/mnist.md"


def _curve(preset: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result(f"examples/paper_mnist_{preset}")["curve"]
    return found


def _within(curve: list[dict[str, Any]], reading: str, epsilon: float) -> dict[str, Any] | None:
    """The last epoch whose ε, by a reading, is at most that."""
    key = f"epsilon_{reading}"
    return next((e for e in reversed(curve) if e[key] is not None and e[key] <= epsilon), None)


def mnist_runs() -> str:
    """Accuracy and certified ε where the source reports them."""
    a, b, thesis, plain = (_curve(name) for name in ("fig5a", "fig5b", "fig4.2", "non-private"))
    rows = []
    for label, published, accuracy, point, bold in (
        ("Fig. 5(a), five seeds", "1.40", "80 ± 1.8 (10 runs)", _within(a, "published", 1.4), True),
        ("", "2.91", "90 ± 0.5", _within(a, "published", 2.91), True),
        ("", f"{rounded(a[-1]['epsilon_published'], up=True, digits=3)}, the end", "—", a[-1], False),
        ("Fig. 5(b), four seeds", "3.0", "81.15 ± 0.7 (4 runs)", _within(b, "published", 3.0), True),
        ("", "5.8, the end", "89.7 ± 0.5", b[-1], True),
        ("Fig. 4.2, five seeds", "10, the end (see below)", "87.9 ± 1 (10 runs)", thesis[-1], True),
    ):
        assert point is not None
        rows.append(
            (label, published, accuracy, percent(point, bold=bold), str(point["epoch"]), interval(point))
        )
    last = plain[-1]
    rows.append(
        ("without privacy, three seeds", "—", "99", percent(last, bold=True), str(last["epoch"]), "—")
    )
    return table(("", "published ε", "published accuracy", "ours", "epoch", "certified ε"), rows)


def mnist_clones() -> str:
    """At the ε of the earlier analysis."""

    def within(preset: str, epsilon: float) -> str:
        point = _within(_curve(preset), "clones_numerical", epsilon)
        assert point is not None
        return f"{percent(point)} % (epoch {point['epoch']})"

    def reached(preset: str, accuracy: float) -> str:
        curve = _curve(preset)
        point = next(e for e in curve if e["accuracy"] >= accuracy)
        end = curve[-1]["epsilon_clones_numerical"]
        first = rounded(point["epsilon_clones_numerical"], up=True, digits=3)
        return f"{first} (epoch {point['epoch']}), {rounded(end, up=True, digits=3)} at the end"

    return table(
        ("", "published, clones", "ours at that ε, clones"),
        [
            ("Fig. 5(a), ε = 1.4", "70.7 ± 2.1 %", within("fig5a", 1.4)),
            ("Fig. 5(a), ε at 90 %", "4.82", reached("fig5a", 0.9)),
            ("Fig. 5(b), ε = 3", "76.46 ± 1.9 %", within("fig5b", 3.0)),
            ("Fig. 5(b), ε at 89.7 %", "18.3", reached("fig5b", 0.897)),
        ],
    )


def mnist_thesis() -> str:
    """Figure 4.2 by each reading of its ε."""
    curve = _curve("fig4.2")
    middle, end = curve[33], curve[-1]

    def line(name: str, reading: str) -> tuple[str, ...]:
        found = []
        for epsilon in (5.0, 10.0):
            point = _within(curve, reading, epsilon)
            inside = point is not None and point["epoch"] < end["epoch"]
            found.append(f"{percent(point)} % (epoch {point['epoch']})" if inside else "not reached")  # type: ignore[arg-type, index]
        values = (rounded(each[f"epsilon_{reading}"], up=True, digits=3) for each in (middle, end))
        return (name, *values, *found)

    certified = (rounded(each["epsilon_upper"], up=True) for each in (middle, end))
    return table(
        ("", "epoch 34", "epoch 80", "accuracy at its ε = 5", "at its ε = 10"),
        [
            line("clones, closed form, strong composition", "clones_closed"),
            line("Theorem 5.4.1 (Rényi, subsampled)", "published"),
            line("clones, numerical, strong composition", "clones_numerical"),
            ("published", "5", "10", "", ""),
            ("certified here", *certified, "", ""),
        ],
    )


def mnist_sums() -> str:
    """Noise of all clients beside a trusted server's."""
    recorded = result("examples/mnist_vector_sum")
    runs = {name: found[0] for name, found in recorded["runs"].items()}
    own, central, plain = runs["vector-sum"], runs["central Gaussian"], runs["no noise"]
    ends = {"epsilon_lower": own["epsilon_leaked_at_least"], "epsilon_upper": own["epsilon_certified"]}
    return table(
        ("noise", "test accuracy", "certified ε", "deviation of the sum's noise / clipping norm"),
        [
            (
                "P_vec, no trusted server",
                f"**{100 * own['accuracy']:.1f} %**",
                interval(ends),
                f"{own['noise_deviation_over_radius']:.2f}",
            ),
            (
                "Gaussian, trusted server",
                f"{100 * central['accuracy']:.1f} %",
                f"{recorded['settings']['epsilon']:.3f}",
                f"{central['noise_multiplier']:.2f}",
            ),
            ("none", f"{100 * plain['accuracy']:.1f} %", "∞", "0"),
        ],
    )


def recorded_runs() -> str:
    """What came out of the training runs whose results are committed."""
    rows: list[tuple[str, str, str, str]] = []
    for run in result("examples/mnist_recipes"):
        name = f"[{run['task']}, `{run['randomizer']}`](mnist.md#two-recipes)"
        epsilon = rounded(run["epsilon_certified"], up=True)
        rows.append((name, "`mnist_recipes.json`", epsilon, f"{100 * run['accuracy']:.1f} %"))
    digits = result("examples/opacus_digits")
    (epsilon,) = {rounded(run["epsilon_certified"], up=True) for run in digits}
    spread = " to ".join(f"{100 * end(run['accuracy'] for run in digits):.1f}" for end in (min, max))
    name = f"[scikit-learn's digits, `privunit`, {len(digits)} runs](../../README.md#install-and-try)"
    rows.append((name, "`opacus_digits.json`", epsilon, f"{spread} %"))
    for run in result("examples/untuned"):
        what = f"{run['data']}, {run['model']}, `{run['randomizer']}`"
        name = f"[without tuning: {what}](benchmarks.md#without-tuning-untunedpy)"
        epsilon = rounded(run["epsilon_certified"], up=True)
        rows.append((name, "`untuned.json`", epsilon, f"{100 * run['accuracy']:.1f} %"))
    for preset, title in (("fig5a", "Fig. 5(a)"), ("fig5b", "Fig. 5(b)"), ("fig4.2", "Fig. 4.2")):
        last = _curve(preset)[-1]
        name = f"[published MNIST run, {title}](mnist.md)"
        rows.append((name, f"`paper_mnist_{preset}.json`", interval(last), f"{percent(last)} %"))
    own = result("examples/mnist_vector_sum")["runs"]["vector-sum"][0]
    ends = {"epsilon_lower": own["epsilon_leaked_at_least"], "epsilon_upper": own["epsilon_certified"]}
    name = "[without a trusted server](mnist.md#without-a-trusted-server)"
    rows.append((name, "`mnist_vector_sum.json`", interval(ends), f"{100 * own['accuracy']:.1f} %"))
    shared = result("examples/mnist_shared_sum")
    name = "[sums that nobody sees](../guides/flower.md#sums-that-nobody-sees)"
    epsilon = rounded(shared["epsilon_observer"], up=True)
    rows.append((name, "`mnist_shared_sum.json`", epsilon, f"{100 * shared['accuracy']:.1f} %"))
    return table(("run", "results", "certified ε", "test accuracy"), rows)


TABLES: Tables = {
    MNIST: {"runs": mnist_runs, "clones": mnist_clones, "thesis": mnist_thesis, "sums": mnist_sums},
    "docs/reference/reproduction.md": {"recorded runs": recorded_runs},
}


def _repeated() -> list[str]:
    """Sentences on how the runs of the papers went, and on what clients sent in the others."""
    at_published = _within(_curve("fig5a"), "published", 1.4)
    assert at_published is not None
    thesis = _curve("fig4.2")
    half = next(point for point in thesis if point["accuracy"] >= 0.767)
    trained = {
        name: max(run["training_seconds"] for run in result(f"examples/paper_mnist_{name}")["runs"])
        for name in ("fig5a", "fig5b", "fig4.2")
    }
    bits = 32 * result("examples/paper_mnist_fig5a")["settings"]["parameters"]
    (own, *_), *_ = kinds = result("examples/mnist_vector_sum")["runs"].values()
    minutes = sum(run["rounds"] * run["seconds_per_round"] for run, *_ in kinds) / 60
    shared = result("examples/mnist_shared_sum")
    sent, counts = shared["payload_bytes"], shared["parameters"]
    return [
        f"after {at_published['epoch']} epochs of Fig. 5(a) ours is "
        f"{80 - 100 * at_published['accuracy']:.0f} points lower",
        f"a float32 gradient of this network is {bits:,} bits, {bits / 15:,.0f} times as many",
        f"The five seeds reach 76.7 % on average at epoch {half['epoch']}, and end at "
        f"{percent(thesis[-1])} %",
        f"five seeds of 5(a) (12 million gradients each) took {trained['fig5a']} seconds beside four seeds "
        f"of 5(b), which took {trained['fig5b']}, all nine in processes of their own; five of 4.2 took "
        f"{trained['fig4.2']}",
        f"some {minutes:.0f} minutes on one core",
        f"on {result('examples/mnist_vector_sum')['settings']['features']} wavelet features of an image "
        f"that are fixed beforehand (as in Tramèr, Boneh 2021): {own['parameters']:,} parameters",
        f"some {shared['rounds'] * shared['median_seconds_per_round'] / 60:.0f} minutes on one core",
        f"A client sends {sent:,} bytes a round, {shared['reply_bytes']:,} as a Flower message: "
        f"{8 * sent // counts} bits for each count, because a sum of {shared['cohort']:,} clients has to "
        f"fit, where its counts alone take {shared['counts_alone_bytes']:,} bytes",
    ]


def sentences() -> Sentences:
    """Pieces of text with measured numbers that a page must have."""
    last = _curve("fig5a")[-1]
    upper = rounded(last["epsilon_upper"], up=True, digits=3)
    published = rounded(last["epsilon_published"], up=True, digits=3)
    epochs = ShuffleAccountant()
    epochs.step(ShuffleRound(local_epsilon=3.0, population=60_000, cohort=64, sampling="epoch"), num_steps=20)
    twenty = rounded(epochs.epsilon(1e-5, lower=False).upper, up=True)
    recipes = result("examples/mnist_recipes")
    reached = {
        name: sorted(
            run["accuracy"]
            for run in recipes
            if run["randomizer"] == name and "features" in run["task"] and run["target_epsilon"] == 2.93
        )
        for name in ("vector-sum", "privunit")
    }
    one_report = " and ".join(f"{100 * each:.1f}" for each in reached["privunit"])
    shared = result("examples/mnist_shared_sum")
    summed, trusted = (
        result("examples/mnist_vector_sum")["runs"][name][0] for name in ("vector-sum", "central Gaussian")
    )
    apart = 100 * abs(summed["accuracy"] - trusted["accuracy"])
    ratios = [
        point["epsilon_published"] / point["epsilon_upper"]
        for preset in ("fig5a", "fig5b")
        for point in (
            _curve(preset)[-1],
            _within(_curve(preset), "published", {"fig5a": 1.4, "fig5b": 3.0}[preset]),
        )
        if point is not None
    ]
    first = next(point for point in _curve("fig5a") if point["accuracy"] >= 0.8)
    told = rounded(first["epsilon_published"], up=True, digits=3)
    return {
        "README.md": [
            f"**ε = {upper} instead of {published}** for the {last['steps']:,} rounds",
            f"**{100 * reached['vector-sum'][-1]:.1f} % on MNIST at ε = 2.93**",
            f"{one_report} % with one report per client and round",
        ],
        "docs/guides/opacus.md": [
            f"20 epochs of 60,000 records at ε0 = 3 cost ε ≤ {twenty} at δ = 1e-5",
        ],
        MNIST: [
            *_repeated(),
            f"The two private runs differ by {apart:.2f} points",
            f"{summed['messages_per_client_and_round'] / 1e6:.0f} million one-bit messages a client and "
            f"round, or {summed['bits_per_client_and_round_as_counts']:,} bits",
            f"It ends at **{100 * shared['accuracy']:.1f} %** and a certified ε of "
            f"{rounded(shared['epsilon_observer'], up=True)} against an observer",
            f"against it ε is {rounded(shared['epsilon_server'], up=True)} for the client",
            f"on average at epoch {first['epoch']}, published ε {told}",
            f"is {min(ratios):.1f} to {max(ratios):.1f} times less",
        ],
    }
