"""Randomizers of a category, and what chapter 7 of Girgis's thesis builds on them."""
