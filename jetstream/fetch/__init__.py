"""The decision what a fetch gets: a range of file bytes, a wait, or a refusal."""
