"""The client's side: what it agrees to, what leaves it, what it remembers."""
