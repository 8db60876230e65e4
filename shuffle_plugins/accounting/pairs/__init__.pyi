from . import noise as noise
