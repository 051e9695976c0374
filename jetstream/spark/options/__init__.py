"""Options of source and sink, and the client that they describe."""
