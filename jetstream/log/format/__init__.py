"""The bytes of a batch: schema, Arrow messages, headers and checksums."""
