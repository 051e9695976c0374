"""Requests about streams, cursors and consumer groups."""
