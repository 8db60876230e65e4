"""Histograms from shuffled one-message reports."""
