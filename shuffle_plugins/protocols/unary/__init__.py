"""Counted unary encoding: clients flip the bits of a vector at random; only the bits' sums are seen."""
