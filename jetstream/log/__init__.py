"""Batches, segments, indexes, recovery: blocking file I/O behind the Disk port."""
