"""What papers promise, for comparison only."""
