"""The member's side of a consumer group: its claims, its commits and its requests."""
