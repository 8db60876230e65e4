"""``python -m shuffle_plugins``: the same as the command ``shuffle-plugins``."""

import sys

from shuffle_plugins.cli import main

sys.exit(main())
