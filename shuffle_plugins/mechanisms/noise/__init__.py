"""Randomizers of vectors that add noise to every coordinate."""
