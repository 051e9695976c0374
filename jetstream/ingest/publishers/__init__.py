"""What a stream remembers of its publishers: message ids, sessions and batches."""
