"""The server adds the clients' histograms up."""

import random
import time
from collections.abc import Iterable
from logging import INFO

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all clients, or a share of them, in every round."""
    num_rounds = context.run_config["num-server-rounds"]
    fraction_sample = context.run_config["fraction-sample"]
    for server_round in range(num_rounds):
        while len(nodes := list(grid.get_node_ids())) < 2:
            log(INFO, "Waiting for nodes to connect...")
            time.sleep(2)
        asked = random.sample(nodes, int(len(nodes) * fraction_sample))
        content = RecordDict()
        messages = [
            Message(content, node, message_type=MessageType.QUERY, group_id=str(server_round))
            for node in asked
        ]
        replies = grid.send_and_receive(messages)
        log(INFO, "Received %s/%s results", len(replies), len(messages))
        log(INFO, "Aggregated histogram: %s", aggregated(replies))


def aggregated(replies: Iterable[Message]) -> dict[str, np.ndarray]:
    """The sum of the clients' histograms, by column."""
    histograms, total_count = {}, 0
    for reply in replies:
        if reply.has_error():
            continue
        for name, value in reply.content["query_results"].items():
            if name in ("SepalLengthCm", "SepalWidthCm"):
                histograms[name] = histograms.get(name, 0) + np.array(value)
            elif name.endswith("_count"):
                total_count += value
    assert total_count == sum(counts.sum() for counts in histograms.values())
    return histograms
