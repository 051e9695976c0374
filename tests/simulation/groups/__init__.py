"""One consumer group in virtual time: members, the network, a coordinator that fails, and what must hold."""
