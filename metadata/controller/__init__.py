"""The controller: decides which nodes are alive and which elections are due, on the metadata leader. Pure."""
