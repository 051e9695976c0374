"""The replicated catalogue: the streams, the nodes, and the leaders."""
