"""Options that commands share, and the values that they parse."""
