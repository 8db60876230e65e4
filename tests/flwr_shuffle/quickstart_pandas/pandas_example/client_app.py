"""A client answers with the histograms of its rows."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import IidPartitioner

app = ClientApp()


def rows_of(partition_id: int, num_partitions: int):
    """The client's part of the iris data, as a data frame of two columns."""
    flowers = FederatedDataset(
        dataset="scikit-learn/iris",
        partitioners={"train": IidPartitioner(num_partitions=num_partitions)},
    )
    frame = flowers.load_partition(partition_id, "train").with_format("pandas")[:]
    return frame[["SepalLengthCm", "SepalWidthCm"]]


@app.query()
def query(msg: Message, context: Context) -> Message:
    """Count the rows in each bin, and sum up each column."""
    rows = rows_of(context.node_config["partition-id"], context.node_config["num-partitions"])
    results = {}
    for column in rows.columns:
        counts, _ = np.histogram(rows[column], bins=np.linspace(2.0, 10.0, 10))
        results[column] = counts.tolist()
        results[f"{column}_avg"] = rows[column].mean() * len(rows)
        results[f"{column}_count"] = len(rows)
    return Message(RecordDict({"query_results": MetricRecord(results)}), reply_to=msg)
