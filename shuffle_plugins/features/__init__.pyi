from .normalization import group_normalized as group_normalized
from .scattering import Scattering as Scattering
