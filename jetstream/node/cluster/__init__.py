"""Membership of the cluster, and the discovery of its voters."""
