from . import gaussian_cover as gaussian_cover
