"""Shuffle-model differential privacy for tools people already use.

``accounting`` says what rounds cost, ``mechanisms`` randomise what a client holds, built from ``compressors``
and the words of ``randomness``. ``planning`` and ``choosing`` find what to run, ``auditing`` attacks it, and
``testing`` is what a mechanism must pass. Hosts (Opacus, Flower) live in packages of their own and depend on
this one, never the reverse.
"""

__version__ = "0.1.0"
