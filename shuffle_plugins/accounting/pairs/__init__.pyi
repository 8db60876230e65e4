from . import fair_coins as fair_coins
from . import gaussian_cover as gaussian_cover
