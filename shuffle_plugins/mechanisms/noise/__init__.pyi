from . import additive_law as additive_law
from . import approximate_noise as approximate_noise
from . import discrete_gaussian as discrete_gaussian
from . import discrete_laplace as discrete_laplace
from . import discrete_sampling as discrete_sampling
