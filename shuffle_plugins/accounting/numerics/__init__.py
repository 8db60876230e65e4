"""Numerical tools with a proven side of error: grids, binomial tails, monotone search."""
