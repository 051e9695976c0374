"""Whole clusters: every node is a voter of the metadata log and a host of replicas, on one virtual clock."""
