"""Servers, aggregators, mixers and SuperLinks: what a round costs each party."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.planning import PartyCost, sum_round_costs

SCALING, MEASURED = "docs/guides/scaling.md", "docs/reference/benchmarks.md"
SIZE = 13_706  # counts of the perceptron that steps were timed with

_STEPS = (
    ("register and activate a node", "join_seconds_per_node"),
    ("a node asks for a message and there is none (every 3 s)", "idle_look_seconds"),
    ("a node's heartbeat (every 24 s or so)", "heartbeat_seconds"),
    ("the server app pushes a node's message", "push_seconds_per_node"),
    ("a node fetches it, and pushes a reply of 43 kB", "exchange_seconds_per_node"),
    ("the server app pulls the reply", "pull_seconds_per_node"),
)
_CARRIED = ("push_seconds_per_node", "exchange_seconds_per_node", "pull_seconds_per_node")


def _size(count: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{count / one:.2g} {unit}" if count < 10 * one else f"{_two(count / one):,.0f} {unit}"
    return f"{count:.0f} B"


def _two(value: float) -> float:
    """Two digits of a number."""
    return float(f"{value:.2g}")


def _time(seconds: float) -> str:
    for unit, one in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= one:
            return f"{seconds / one:.2g} {unit}"
    return f"{seconds:.2g} s"


def _ms(values: Iterable[float]) -> str:
    """One time in milliseconds, or the range of several, to two digits."""
    shown = [f"{1e3 * value:.2g}" if value < 0.1 else f"{1e3 * value:.0f}" for value in sorted(values)]
    return f"{shown[0]} ms" if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]} ms"


def _rates(values: Iterable[float]) -> str:
    """Clients per core and second: one number, or the range of several, to two digits."""
    shown = [f"{_two(1 / value):,.0f}" for value in sorted(values, reverse=True)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _of(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _link(nodes: int, database: str) -> dict[str, Any]:
    """A run with a SuperLink: its own numbers and those of its round."""
    (run,) = _of(result("benchmarks/superlink")["runs"], nodes=nodes, database=database)
    return run | run["rounds"][0]


def _carried(nodes: int, database: str) -> float:
    """Seconds of a SuperLink for a client and round."""
    return sum(_link(nodes, database)[step] for step in _CARRIED)


def _mixers() -> list[dict[str, Any]]:
    return _of(result("benchmarks/mixer"), mixer="single", report_bytes=16_000)


def parties() -> str:
    """What a client costs each party."""
    steps = result("benchmarks/sum_parties")
    (shared,) = _of(steps["shared"], size=SIZE)
    (verified,) = _of(steps["verified"], size=SIZE)
    (proved,) = _of(result("benchmarks/range_proofs")["costs"], length=SIZE, kind="Prio3SumVecWithMultiproof")
    (mixed,) = _of(steps["mixed"], report_bytes=16_000)
    added = max(result("benchmarks/secure_sum")["aggregator"], key=lambda row: row["clients"])
    (most,) = _of(_mixers(), reports=10**5)
    sealed = shared["client_share_seconds"] + shared["client_seal_seconds"]
    checked = [verified["server_seconds"], proved["server_seconds"]]
    aggregated = [
        verified["aggregator_verify_seconds"] + verified["aggregator_add_seconds"],
        proved["aggregator_seconds"],
    ]
    sum_seconds = added["processor_seconds"] / added["clients"]
    grown = added["peak_megabytes"] - added["peak_megabytes_before_the_first_client"]
    turns = [1 / row["reports_per_second"] for row in _mixers()]
    links = [_carried(1_000, "memory"), _carried(100, "file")]
    rows = (
        (
            "client",
            f"share its counts and seal one seed ({_size(shared['bytes_to_server'])} sent)",
            _ms([sealed]),
            "",
            "",
        ),
        (
            "",
            f"the same with a range proof ({_size(verified['bytes_to_server'])} sent)",
            _ms([verified["client_share_seconds"], proved["client_seconds"]]),
            "",
            "",
        ),
        (
            "",
            "seal a report of 16 kB to server and mixer",
            _ms([mixed["client_seal_seconds"]]),
            "",
            "",
        ),
        (
            "server",
            "read, check and add a share",
            _ms([shared["server_seconds"]]),
            _rates([shared["server_seconds"]]),
            "a digest and an envelope for each client, and 32 replies; the shares lie in a file",
        ),
        ("", "the same, and verify its range proof", _ms(checked), _rates(checked), ""),
        (
            "",
            "open a mixed report of 16 kB",
            _ms([mixed["server_open_seconds"]]),
            _rates([mixed["server_open_seconds"]]),
            "every envelope of the round",
        ),
        (
            "aggregator",
            "open, check, expand and add a seed",
            _ms([sum_seconds]),
            _rates([sum_seconds]),
            f"{_size(_two(1e6 * grown / added['clients']))} for each client, and one vector",
        ),
        (
            "",
            "the same, and verify a range proof",
            _ms(aggregated),
            _rates(aggregated),
            f"{_size(verified['bytes_answered'])} for each client",
        ),
        (
            "mixer",
            "open, check and permute a report of 16 kB",
            _ms(turns),
            _rates(turns),
            "one message (32 MiB), and its enrolled clients' keys; "
            f"10^5 reports: {most['peak_mib']} MiB beside it",
        ),
        (
            "SuperLink",
            "carry a model and a reply of 43 kB, state in memory",
            _ms(links[:1]),
            _rates(links[:1]),
            "every reply not yet fetched",
        ),
        ("", "the same, state in SQLite (`--database FILE`)", _ms(links[1:]), _rates(links[1:]), ""),
    )
    return table(("party", "step", "per client", "clients per core and second", "memory"), rows)


def _costs(clients: int, size: int, **more: Any) -> tuple[PartyCost, PartyCost, PartyCost]:
    (found,) = _of(result("benchmarks/protocols")["largest"], clients=clients, dim=size)
    return sum_round_costs(clients=clients, size=size, largest=found["largest"], **more)


def sums() -> str:
    """Shared sums of many clients, and of many counts, from the cost model."""
    rows = []
    for row in result("benchmarks/protocols")["largest"]:
        if row["clients"] > 10**4 and row["dim"] != SIZE:
            continue
        client, server, aggregator = _costs(row["clients"], row["dim"])
        power = {13_706: "13,706", 10**6: "10^6", 10**7: "10^7"}[row["dim"]]
        rows.append(
            (
                f"10^{len(str(row['clients'])) - 1}",
                power,
                _size(client.sent),
                _size(server.received),
                _time(server.seconds),
                _size(server.memory),
                _size(aggregator.received),
                _time(aggregator.seconds),
                _size(aggregator.memory),
            )
        )
    head = ("clients", "d", "each client sends")
    for party in ("server", "aggregator"):
        head += (
            f"{'the ' if party == 'server' else ''}{party} receives",
            f"{party}, one core",
            f"{party}, memory",
        )
    return table(head, rows)


def superlink() -> str:
    """Processor times of a SuperLink."""
    runs = [_link(100, "memory"), _link(1_000, "memory"), _link(100, "file")]
    rows = [(title, *(_ms([run[key]]) for run in runs)) for title, key in _STEPS]
    return table(("step", "state in memory, 100 nodes", "1,000 nodes", "SQLite, 100 nodes"), rows)


TABLES: Tables = {SCALING: {"shared sums": sums}, MEASURED: {"parties": parties, "superlink": superlink}}


def _scaling() -> list[str]:
    (shared,) = _of(result("benchmarks/sum_parties")["shared"], size=SIZE)
    added = max(result("benchmarks/secure_sum")["aggregator"], key=lambda row: row["clients"])
    memory, file = _link(1_000, "memory"), _link(100, "file")
    large = _link(1, "memory")

    def waiting(run: dict[str, Any]) -> float:
        return float(run["idle_look_seconds"] / 3 + run["heartbeat_seconds"] / 24)

    def pushed(run: dict[str, Any]) -> float:
        return 30 / float(run["push_seconds_per_node"])

    (proof,) = _of(result("benchmarks/range_proofs")["costs"], length=SIZE, kind="Prio3SumVec")
    nodes = f"{round(1 / waiting(memory), -2):.0f}"
    link = _carried(1_000, "memory")
    return [
        f"One SuperLink spends {1e3 * link:.0f} ms of a core on each client and round, "
        f"where our server spends {1e3 * shared['server_seconds']:.0f} ms and an aggregator "
        f"{1e3 * added['processor_seconds'] / added['clients']:.1f} ms; "
        f"and about {nodes} connected SuperNodes that only wait keep one core busy",
        f"some {nodes} take all of one core ({round(1 / waiting(file), -1):.0f} with SQLite)",
        f"{1 / link:.0f} per core with the state in memory, {1 / _carried(100, 'file'):.0f} with SQLite",
        f"some {round(pushed(memory), -3):,.0f} clients with the state in memory, some "
        f"{round(pushed(file), -3):,.0f} with SQLite",
        f"a reply of {large['reply_bytes'] >> 20} MiB took the SuperLink from "
        f"{large['superlink_megabytes_before']:.0f} to {large['superlink_peak_megabytes']:.0f} MB, and the "
        f"server app to {large['serverapp_peak_megabytes']:.0f} MB",
        f"twice the bytes of our verified sum, {proof['bytes_to_server'] / 1e6:.1f} MB a client",
    ]


def _seed() -> list[str]:
    """What an aggregator receives for each client, and where one object of a database is full."""
    *_, aggregator = _costs(10**4, SIZE)
    (shared,) = _of(result("benchmarks/sum_parties")["shared"], size=SIZE)
    each = round(aggregator.received / 10**4 / 2)  # sent twice
    return [
        f"A client is {2 * each} bytes to it, at any d",
        f"an envelope of {each} bytes for each client and aggregator",
        f"the envelopes of {10**9 / each / 1e6:.1f} million clients",
        f"where a share is {shared['bits']} bits for each",
    ]


def _sharing() -> list[str]:
    """What sharing costs, beside sending counts openly, and windows, beside plain sums."""
    found = result("benchmarks/secure_sum")
    over = [row["shared_over_plain"] for row in found["client"]]
    windows = found["windows"]
    times, sizes = (
        [row[f"windows_over_plain_shared_{name}"] for row in windows["client"]]
        for name in ("seconds", "bytes")
    )
    speeds = [100 * row["windows_over_plain_throughput"] for row in windows["aggregator"]]
    return [
        f"{min(over):.1f} to {max(over):.1f} times the processor time of its plain report",
        f"take {min(times):.1f} to {max(times):.1f} times the processor time of a plain sum's, "
        f"and {max(sizes):.1f} times the bytes",
        f"at {min(speeds):.0f} to {max(speeds):.0f} % of its speed for plain sums",
    ]


def _memory() -> str:
    """What a server holds while it adds up shares."""
    rounds = result("benchmarks/server_memory")["rounds"]
    peaks = {(row["clients"], row["shares_in"]): row["peak_bytes"] / 1e6 for row in rounds}
    file, memory = peaks[500, "a file"], peaks[500, "memory"]
    return f"took {file:.0f} MB with shares in a file, and {memory:.0f} MB in memory"


def sentences() -> Sentences:
    """Pieces of text about parties' costs."""
    return {
        SCALING: [*_scaling(), *_seed()],
        MEASURED: [_memory(), *_sharing()],
    }
