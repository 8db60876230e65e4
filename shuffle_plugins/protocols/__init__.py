"""Multi-message shuffle protocols: many small messages per client, and central-model accuracy."""

from shuffle_plugins.protocols.scalar_sum import ScalarSum
from shuffle_plugins.protocols.vector_sum import VectorSum

__all__ = ["ScalarSum", "VectorSum"]
