"""From a reader's cursor, limits and the high watermark to a range of file bytes, a wait, or a refusal."""
