"""Connections between nodes: dialling, accepting, and the links between voters."""
