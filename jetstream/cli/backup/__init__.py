"""The commands that back a cluster up and restore it."""
