from .signs import decode_signs as decode_signs
from .signs import encode_signs as encode_signs
from .signs import encode_signs_torch as encode_signs_torch
from .signs import gather_signs as gather_signs
from .signs import pack_signs as pack_signs
from .signs import unpack_signs as unpack_signs
