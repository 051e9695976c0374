"""A consumer: its membership of a group, its partitions and its commits."""
