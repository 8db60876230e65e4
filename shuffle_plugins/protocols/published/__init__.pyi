from . import frequencies as frequencies
from . import sums as sums
