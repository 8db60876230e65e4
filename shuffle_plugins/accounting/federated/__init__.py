"""Accounting of federated learning: what the observer, the server and everybody together learn."""
