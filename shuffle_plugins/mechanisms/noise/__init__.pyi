from . import additive_law as additive_law
from . import gaussian_grid as gaussian_grid
from . import gaussian_law as gaussian_law
from . import laplace_law as laplace_law
