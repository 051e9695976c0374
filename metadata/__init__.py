"""The replicated catalogue: which streams and nodes exist, and who leads what."""
