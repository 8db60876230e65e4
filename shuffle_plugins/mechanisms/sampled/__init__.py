"""Randomizers of vectors that send the signs of a few coordinates or coefficients."""
