"""How pictures are divided among clients."""

from dataclasses import dataclass


@dataclass
class IidPartitioner:
    """The same number for each, in the order of the data, which is random."""

    num_partitions: int
