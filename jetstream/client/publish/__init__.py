"""Publishing: acks, batches and sessions."""
