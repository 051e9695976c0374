"""What must hold of nodes and metadata group together, each law in a file of its own."""
