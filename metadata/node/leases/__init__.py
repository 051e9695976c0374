"""The node's liveness reports and leases, and the steward that grants them."""
