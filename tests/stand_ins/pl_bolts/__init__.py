"""In place of Lightning's bolts, which today's Lightning cannot load: a data module of stand-in pictures."""
