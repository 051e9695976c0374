"""The directory of this node's streams, and what passes between them."""
