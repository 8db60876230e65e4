"""Multi-message shuffle protocols: many small messages per client, and central-model accuracy."""

from shuffle_plugins.protocols.coins.histogram_sum import HistogramSum
from shuffle_plugins.protocols.coins.scalar_sum import ScalarSum
from shuffle_plugins.protocols.coins.vector_sum import VectorSum
from shuffle_plugins.protocols.errors import OutOfReach
from shuffle_plugins.protocols.frequencies.estimation import FrequencyEstimation
from shuffle_plugins.protocols.histograms import Histogram, Intervals
from shuffle_plugins.protocols.shares.split_sum import SplitSum
from shuffle_plugins.protocols.tags.ball_sum import BallSum
from shuffle_plugins.protocols.tags.base import TaggedBits
from shuffle_plugins.protocols.tags.binary_sum import BinarySum
from shuffle_plugins.protocols.tags.cube_sum import CubeSum
from shuffle_plugins.protocols.tally import Tally

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
