"""The privacy statement: everything that has to be said beside an ε."""
