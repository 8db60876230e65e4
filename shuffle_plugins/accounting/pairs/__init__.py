"""Dominating pairs: two distributions that are at least as far apart as any two neighbouring datasets."""
