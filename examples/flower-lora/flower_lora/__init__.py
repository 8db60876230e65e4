"""Adapters of a pretrained language model, learnt by Flower clients of whom only a sum is ever seen."""
