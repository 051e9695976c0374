"""Work on sealed segments: compaction, the sealed rewrite, scrub and repair."""
