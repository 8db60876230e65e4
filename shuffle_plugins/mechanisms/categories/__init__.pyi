from . import hadamard_response as hadamard_response
from . import k_rr as k_rr
from . import local_hashing as local_hashing
from . import mixture_oracle as mixture_oracle
from . import subset_selection as subset_selection
from . import unary_encoding as unary_encoding
