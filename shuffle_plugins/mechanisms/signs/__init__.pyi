from . import bit_planes as bit_planes
from . import coefficients as coefficients
from . import coordinate_blocks as coordinate_blocks
from . import randomized_response as randomized_response
from . import representations as representations
from . import sign_blocks as sign_blocks
from . import sign_patterns as sign_patterns
