"""The node's liveness reports and leases, and the controller driver that grants them."""
