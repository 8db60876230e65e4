from . import additive_law as additive_law
from . import discrete_gaussian_law as discrete_gaussian_law
from . import discrete_laplace_law as discrete_laplace_law
from . import discrete_sampling as discrete_sampling
from . import gaussian_law as gaussian_law
