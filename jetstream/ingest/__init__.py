"""NATS bytes to sequenced batches to acks, pure."""
