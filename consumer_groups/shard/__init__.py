"""All groups that one log holds: their requests, writes, heartbeats and durable state."""
