"""Sessions with the other nodes."""
