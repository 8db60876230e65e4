"""Sums of random bits whose probabilities depend on the clients' values; no other noise is added."""
