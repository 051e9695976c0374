"""The request API over NATS."""
