from .images import ImageFeatures as ImageFeatures
from .normalization import group_normalized as group_normalized
from .normalization import place_normalized as place_normalized
from .patches import PatchFeatures as PatchFeatures
from .scattering import Scattering as Scattering
from .whitening import ChannelWhitening as ChannelWhitening
from .whitening import dead_leaves as dead_leaves
