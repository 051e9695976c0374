"""Shards of consumer groups, and the cursors that they keep."""
