"""How much goes to one reader before the others have their turn."""

from jetstream.fetch.turns import SHORT_TURN_BYTES, TURN_BYTES, Turns


def test_turns_are_short_from_an_append_until_its_ack_may_have_left() -> None:
    turns = Turns()
    assert turns.length(100.0) == TURN_BYTES
    turns.appending(100.0)
    assert turns.length(100.0) == turns.length(100.009) == SHORT_TURN_BYTES < TURN_BYTES
    turns.appending(100.005)
    assert turns.length(100.0149) == SHORT_TURN_BYTES
    assert turns.length(100.016) == TURN_BYTES
