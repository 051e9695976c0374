"""Raft: one voter as a pure state machine (`metadata.raft.machine`).

Its invariants follow from the Raft paper, or keep one of its properties while the disk writes behind what the
voter has decided.
"""
