"""How data are divided among clients."""

from dataclasses import dataclass


@dataclass
class IidPartitioner:
    num_partitions: int
