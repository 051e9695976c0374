"""``jetstream up`` and ``jetstream node``: processes of nodes and their directories."""
