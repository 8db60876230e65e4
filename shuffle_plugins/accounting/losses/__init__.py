"""Privacy loss distributions of one round, rounded up for upper bounds and down for lower bounds."""
