"""The client library: publish with awaited acks over NATS, read by offset over the socket protocol."""
