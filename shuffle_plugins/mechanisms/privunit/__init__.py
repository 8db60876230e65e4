"""Randomizers of vectors in an l2 ball that send a direction: PrivUnit and its kin."""
