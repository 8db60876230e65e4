"""Sums of additive shares, each client's split into several messages."""
