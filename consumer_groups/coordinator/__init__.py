"""The coordinator of one consumer group: members, generations and fencing."""
