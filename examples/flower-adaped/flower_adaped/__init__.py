"""Every Flower client learns a model of its own, with the help of a private global one (DP-AdaPeD)."""
