"""Spark data source."""
