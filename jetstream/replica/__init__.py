"""The replication state machines, pure."""
