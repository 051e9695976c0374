"""From a backup to the data directory of the first node of a new cluster."""
