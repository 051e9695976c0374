"""A Raft leader: replication, progress of the followers and reads."""
