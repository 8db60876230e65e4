"""Numerical tools with a proven side of error: sums of draws, monotone search."""
