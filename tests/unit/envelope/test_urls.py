import pytest

from envelope.urls import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://ann:secret@host:4222", "nats://host:4222"),
        ("tls://token@host", "tls://host"),
        ("ann:p@ss@host:4222", "host:4222"),
    ],
)
def test_a_shown_url_has_no_user_password_or_token(url: str, shown: str) -> None:
    assert shown_url(url) == shown
