"""The HTTP port: the console, records and what else can be read, probes and metrics."""
