"""Queries as in Flower's quickstart-pandas: the same names, records and calls, written anew."""
