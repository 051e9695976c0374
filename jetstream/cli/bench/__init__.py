"""``jetstream bench``: a running cluster measured as an application sees it."""
