"""Every numerical figure of the papers behind this package, redrawn with its own curves beside theirs.

Girgis, Data, Diggavi 2021 (subsampled shuffle, arXiv 2107.08763), Figures 2–5; Feldman, McMillan, Talwar 2021
(clones, arXiv 2012.12803), Figures 2–4; Girgis's thesis (UCLA 2023), Figures 5.2–5.6.
``docs/reference/figures.md`` shows them and says which parameters the captions give and which were chosen
here.

    python examples/figures/make.py
"""
