"""The source: plans, ranges, columns and readers."""
