"""The object store: segments uploaded, brought in and let go."""
