"""A voter: its Raft machine, its disk thread and the reads that wait for it."""
