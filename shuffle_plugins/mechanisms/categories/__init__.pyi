from . import oracles_law as oracles_law
