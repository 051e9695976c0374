"""An archive of Parquet files: its manifest, levels and merges, and what is replayed of it."""
