"""Tables and sentences of the pages, by topic."""
