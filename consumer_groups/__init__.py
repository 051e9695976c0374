"""Who reads what, and how far."""
