"""Segment files and their indexes: written, scanned, retained and refused."""
