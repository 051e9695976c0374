"""``jetstream mirror``."""
