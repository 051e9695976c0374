"""The shell that stores and drives the catalogue: blocking calls, for a thread that may block."""
