"""Raft: one voter as a pure state machine (`metadata.raft.machine`)."""
