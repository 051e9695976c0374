"""A replica of a stream on this node, led or followed."""
