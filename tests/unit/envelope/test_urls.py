import pytest

from envelope.urls import shown_url, user_in


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


@pytest.mark.parametrize(
    ("urls", "user"),
    [
        (["nats://host:4222"], {}),
        (
            ["nats://a%40b:c%3Ad%2540@host", "nats://a%40b:c%3Ad%2540@other"],
            {"user": "a@b", "password": "c:d%40"},
        ),
        (["tls://t%2Fk@host"], {"token": "t/k"}),
        (["nats://a:b@host", "nats://c:d@other"], {}),
        (["nats://a:b@host", "nats://other"], {}),
        (["nats://a:b@[::1"], {}),
    ],
)
def test_the_user_that_all_urls_name_is_decoded(urls: list[str], user: dict[str, str]) -> None:
    assert user_in(urls) == user
