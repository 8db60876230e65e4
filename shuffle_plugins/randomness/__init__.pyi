from .chacha import WHOLE as WHOLE
from .chacha import Keystream as Keystream
from .chacha import runs_kernels as runs_kernels
from .sources import Randomness as Randomness
from .sources import SecureRandomness as SecureRandomness
from .sources import SeededRandomness as SeededRandomness
from .sources import Size as Size
from .sources import secure as secure
