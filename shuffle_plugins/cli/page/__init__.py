"""The page of ``shuffle-plugins app``: sliders for rounds, and what the accountant says of them.

``settings`` reads a setting from a query and writes it as a command line or as Python. ``answers`` asks the
accountant. ``picture`` draws ε as an SVG. ``rendering`` puts answers into the templates beside it, one part
after the other, ``workers`` does all this in processes that can be ended, and ``server``
sends what they say to a browser on this machine. None of them imports torch.
"""
