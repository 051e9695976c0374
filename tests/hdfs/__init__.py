"""Tiers on a real HDFS: needs what ``with_hdfs`` makes, and is skipped where it is not there."""
