"""What must hold whatever the machines do, each law in a file of its own."""
