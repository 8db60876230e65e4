"""Kinds of rounds: who takes part, how reports are made, and who looks at them."""
