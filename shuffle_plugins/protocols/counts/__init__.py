"""Sums of counts of random bits that lean to the clients' values, without noise of their own beside."""
