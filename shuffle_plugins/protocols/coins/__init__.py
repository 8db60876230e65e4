"""Sums whose noise is fair coins, tossed by all clients: P_vec and its kin."""
