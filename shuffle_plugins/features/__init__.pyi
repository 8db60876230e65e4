from .normalization import group_normalized as group_normalized
from .normalization import place_normalized as place_normalized
from .scattering import Scattering as Scattering
