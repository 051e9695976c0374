"""A node's place in the metadata group: a voter or an observer behind one port."""
