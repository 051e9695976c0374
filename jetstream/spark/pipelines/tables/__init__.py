"""A stream as a table of files: merged buckets and versions."""
