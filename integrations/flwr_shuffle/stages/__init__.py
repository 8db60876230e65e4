"""Where identity ends: shuffling in the server's process, a sum, or a mix node of its own."""
