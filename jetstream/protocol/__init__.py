"""The socket protocol as values and machines: frames, requests, responses, connections; no sockets."""
