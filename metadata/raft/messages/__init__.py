"""Messages between voters, nodes and observers, and their wire form."""
