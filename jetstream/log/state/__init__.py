"""The state files of a log: checkpoint, epochs, and marks of compaction and rewriting."""
