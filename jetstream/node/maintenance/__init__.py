"""Housekeeping, compaction, rewriting, scrub and repair."""
