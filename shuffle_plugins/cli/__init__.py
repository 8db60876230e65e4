"""The command line, ``shuffle-plugins``."""

from shuffle_plugins.cli.app import main

__all__ = ["main"]
