"""The two NATS connections: parser seam, subscriptions, interruptions and gaps."""
