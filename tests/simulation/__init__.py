"""Deterministic simulation: the product's pure machines in virtual time, one seed deciding all chance.

`timeline`, `network`, `clock` and `trace` know nothing of what runs on them; `raft` puts the voters of the
metadata log on them. Whole nodes with replicas can stand beside it on the same four.
"""
