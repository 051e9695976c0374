"""The socket that readers fetch from."""
