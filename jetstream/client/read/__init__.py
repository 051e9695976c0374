"""Reading: fetches, readers, records and tables."""
