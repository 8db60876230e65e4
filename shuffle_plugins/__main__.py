"""``python -m shuffle_plugins``: the same as the command ``shuffle-plugins``."""

import sys

from shuffle_plugins.cli import main

if __name__ == "__main__":  # processes of the page load this file, too
    sys.exit(main())
