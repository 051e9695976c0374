"""The disk thread and the group commit; logs opened, written and kept."""
