"""What everything else stands on: batches of vectors, reports and their wire format, checks of arguments."""
