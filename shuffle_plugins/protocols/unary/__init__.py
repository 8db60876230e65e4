"""Counted unary encoding: clients flip the bits of a vector, and the bits are summed."""
