"""The sink: columns, targets and staged files."""
