"""Stages, which take the senders' names from a round's reports: by shuffling them, or by adding them up."""
