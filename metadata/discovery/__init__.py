"""How a node finds its cluster over NATS, and nodes hear of each other."""
