"""Flower integration; it has no public names in this release."""
