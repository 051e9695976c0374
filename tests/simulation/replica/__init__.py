"""Whole clusters of replicas of streams, from the machines in `jetstream.replica` and the real catalogue."""
