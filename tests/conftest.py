"""Property tests search anew on a developer's machine and repeat themselves in continuous integration.

No test may fail because the machine is busy, so none of them has a deadline.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores already; before NumPy and torch are loaded
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("developer", **patient)
settings.register_profile("ci", derandomize=True, **patient)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
