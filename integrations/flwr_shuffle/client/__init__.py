"""The client's side: the mod, its limits, and its ledger. It imports nothing of server or stages."""
