"""One fault, as it is drawn before anybody knows whom it will meet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One that was drawn."""

    kind: str
    role: str
    shape: str
    number: float
    """Between 0 and 1, for whatever the kind needs."""
    after_acks: int
    """How many acks come between this and what is next, in at most ``seconds``."""
    seconds: float
