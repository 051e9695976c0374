"""What a checker raises."""


class Violation(Exception):
    """A promise was broken; the text has the numbers."""
