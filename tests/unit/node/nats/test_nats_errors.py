"""What a server's ``-ERR`` says of subscriptions: every text that nats-server 2.15 can send to a client."""

import pytest

from jetstream.node.nats.errors import Refusal, refusal_in

OTHERS = (
    "Account Authentication Expired",
    "Authentication Timeout",
    "Authorization Violation",
    "Connection throttling is active. Please try again later.",
    "Failed Account Registration",
    "Invalid Publish Subject",
    "Maximum Payload Violation",
    'Permissions Violation for Publish to "invalid subject"',
    'Permissions Violation for Publish to "permissions violation for subscription to"',
    'Permissions Violation for Publish with Reply of "maximum subscriptions exceeded"',
    "Secure Connection - TLS Required",
    "Stale Connection",
    "Unknown Protocol Operation",
    "User Authentication Expired",
    "User Authentication Revoked",
    "attempted to connect to route port",
    "invalid client protocol",
    "maximum account active connections exceeded",
    "maximum connections exceeded",
    "maximum control line exceeded",
    "message headers not supported",
    "no responders requires headers support",
    "a text of a later version",
    "",
)


@pytest.mark.parametrize("error", OTHERS)
def test_an_error_about_something_else_refuses_no_subscription(error: str) -> None:
    assert refusal_in(error) is None
    assert refusal_in(error.lower()) is None


@pytest.mark.parametrize(
    "error", ["maximum subscriptions exceeded", "Invalid Subject", "Invalid Subscription"]
)
def test_what_names_no_subscription_refuses_the_one_that_was_asked_for(error: str) -> None:
    for text in (error, error.lower()):
        assert refusal_in(text) == Refusal(text, is_denial=False)


@pytest.mark.parametrize(
    ("about", "is_denial", "sid"),
    [
        ('"orders.>"', True, None),
        ('"orders.>" using queue "workers"', True, None),
        (r'"a\"b (sid \"3\")"', True, None),
        ('"a.b.c.d", too many tokens', False, None),
        ('"orders.>" (sid "17")', True, 17),
        ('"orders.>" using queue "workers" (sid "4")', True, 4),
        (r'"a (sid \"3\")" (sid "5")', True, 5),
    ],
)
def test_a_right_that_is_missing_is_told_from_the_rest(about: str, is_denial: bool, sid: int | None) -> None:
    text = f"Permissions Violation for Subscription to {about}"
    for said in (text, text.lower()):
        assert refusal_in(said) == Refusal(said, is_denial, sid)
