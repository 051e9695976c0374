"""Measurements against the disk, NATS alone and NATS JetStream, as commands (benchmarks/README.md)."""
