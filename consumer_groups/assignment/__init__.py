"""The assignment of partitions to members: the assignors and their shared types."""
