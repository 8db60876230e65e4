from .images import ChannelWhitening as ChannelWhitening
from .images import ImageFeatures as ImageFeatures
from .images import PatchFeatures as PatchFeatures
from .images import Scattering as Scattering
from .images import dead_leaves as dead_leaves
from .images import group_normalized as group_normalized
from .images import place_normalized as place_normalized
