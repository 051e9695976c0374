"""Backups of a cluster in a folder or an object store: what they hold, and how it is found there."""
