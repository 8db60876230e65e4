from . import divergences as divergences
from . import shuffles as shuffles
from . import thesis as thesis
from .catalogue import PUBLISHED_BOUNDS as PUBLISHED_BOUNDS
from .catalogue import PublishedBound as PublishedBound
from .catalogue import compose_points as compose_points
from .catalogue import compose_renyi as compose_renyi
from .catalogue import published_bound as published_bound
