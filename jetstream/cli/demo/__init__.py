"""``jetstream demo``: flights through one node or through three."""
