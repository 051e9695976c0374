"""Consumer groups: their members, partitions and cursors."""
