"""The node's settings, certificates and peers."""
