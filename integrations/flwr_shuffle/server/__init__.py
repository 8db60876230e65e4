"""The server's side: who is asked, what is spent, and what is released."""
