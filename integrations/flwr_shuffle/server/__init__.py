"""The server's side: the strategy, its rounds, what they cost, and what is saved."""
