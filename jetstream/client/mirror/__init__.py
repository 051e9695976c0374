"""Mirrors: a copy of a stream in another cluster, at offsets of which the difference is constant."""
