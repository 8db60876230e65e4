"""Sums of randomised bits that carry a public tag: multi-message mean estimation."""
