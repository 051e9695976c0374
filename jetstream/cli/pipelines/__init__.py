"""``jetstream pipeline``: jobs on Spark over streams."""
