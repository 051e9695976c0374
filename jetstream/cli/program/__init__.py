"""How the command loads, helps and completes."""
