"""Sealed segments in an object store: names, manifest, upload, and reading them back."""
