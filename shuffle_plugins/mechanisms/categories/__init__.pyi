from . import frequency_oracles_law as frequency_oracles_law
