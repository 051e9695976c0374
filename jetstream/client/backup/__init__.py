"""Backups of a running cluster."""
