"""Multi-message shuffle protocols: many small messages per client, and central-model accuracy."""

from shuffle_plugins.protocols.ball_sum import BallSum
from shuffle_plugins.protocols.binary_sum import BinarySum
from shuffle_plugins.protocols.cube_sum import CubeSum
from shuffle_plugins.protocols.frequencies import FrequencyEstimation
from shuffle_plugins.protocols.histogram_sum import HistogramSum
from shuffle_plugins.protocols.histograms import Histogram, Intervals
from shuffle_plugins.protocols.reach import OutOfReach
from shuffle_plugins.protocols.scalar_sum import ScalarSum
from shuffle_plugins.protocols.split_sum import SplitSum
from shuffle_plugins.protocols.tagged_sum import TaggedBits
from shuffle_plugins.protocols.tally import Tally
from shuffle_plugins.protocols.vector_sum import VectorSum

__all__ = [
    "BallSum",
    "BinarySum",
    "CubeSum",
    "FrequencyEstimation",
    "Histogram",
    "HistogramSum",
    "Intervals",
    "OutOfReach",
    "ScalarSum",
    "SplitSum",
    "TaggedBits",
    "Tally",
    "VectorSum",
]
