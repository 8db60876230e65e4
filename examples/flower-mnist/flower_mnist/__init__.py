"""Digits learnt by Flower clients whose updates are randomised, shuffled and accounted for."""
