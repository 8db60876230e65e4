from .images import ImageFeatures as ImageFeatures
from .patches import PatchFeatures as PatchFeatures
from .patches import dead_leaves as dead_leaves
from .rows import ChannelWhitening as ChannelWhitening
from .rows import group_normalized as group_normalized
from .rows import place_normalized as place_normalized
from .scattering import Scattering as Scattering
