"""Connections to nodes, the choice of a replica, and requests over NATS."""
