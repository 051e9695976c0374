"""The publisher state of a stream: message ids, sessions and batches."""
