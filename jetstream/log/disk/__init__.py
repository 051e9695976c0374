"""The disk port, its implementation by the operating system, and small state files."""
