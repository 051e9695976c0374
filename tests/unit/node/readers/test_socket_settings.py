"""The settings of the socket: what is refused, what is read from files, and that no secret is shown."""

import logging
from pathlib import Path

import pytest

from envelope.errors import InvalidConfig
from jetstream.node.readers.settings import socket_settings
from jetstream.node.settings.node_config import TOKEN_CHARS_MAX, NodeConfig, SocketConfig, load_config
from tests.support.nats_identities import make_tls_files

SECRET = "swordfish-and-chips"


def config_of(tmp_path: Path, text: str) -> NodeConfig:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load_config(file)


def token_of(config: SocketConfig) -> str | None:
    token = socket_settings(config).token
    return None if token is None else token.get_secret_value()


def test_without_a_word_there_is_neither_token_nor_tls() -> None:
    settings = socket_settings(SocketConfig())
    assert settings.token is None
    assert settings.tls is None


def test_the_token_comes_from_the_file_the_environment_or_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_of(config_of(tmp_path, f'[socket]\ntoken = "{SECRET}"').socket) == SECRET
    own = tmp_path / "token"
    own.write_text(f"  {SECRET}\n")
    assert token_of(config_of(tmp_path, f'[socket]\ntoken_file = "{own}"').socket) == SECRET
    monkeypatch.setenv("JETSTREAM_NODE_SOCKET__TOKEN", "from the environment")
    assert token_of(config_of(tmp_path, f'[socket]\ntoken = "{SECRET}"').socket) == "from the environment"


def test_tls_is_a_section_of_its_own(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    section = f'[socket.tls]\ncertificate = "{files.server_certificate}"\nkey = "{files.server_key}"'
    assert socket_settings(config_of(tmp_path, section).socket).tls is not None


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ('token = ""', "socket.token"),
        (f'token = "{SECRET * TOKEN_CHARS_MAX}"', "socket.token"),
        (f'token = "{SECRET}"\ntoken_file = "t"', "token or token_file"),
        (f'tokens = "{SECRET}"', "socket.tokens"),
        (f'[socket.tls]\ncertificate = "c"\npassword = "{SECRET}"', "socket.tls.key"),
    ],
)
def test_settings_that_cannot_be_are_named_without_the_secret(
    tmp_path: Path, section: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem) as caught:
        config_of(tmp_path, f"[socket]\n{section}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", SECRET.encode() * TOKEN_CHARS_MAX])
def test_a_token_file_without_a_token_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    for config in (SocketConfig(token_file=file), SocketConfig(token_file=tmp_path)):
        file.write_bytes(content)
        with pytest.raises(InvalidConfig, match=r"socket\.token_file") as caught:
            socket_settings(config)
        assert SECRET not in str(caught.value)


def test_the_token_is_in_no_repr(tmp_path: Path) -> None:
    config = config_of(tmp_path, f'[socket]\ntoken = "{SECRET}"')
    assert SECRET not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"
    assert SECRET not in repr(socket_settings(config.socket))


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"token": SECRET}, "travels unencrypted"),
        ({}, "whoever can connect can read every stream"),
    ],
)
@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("10.0.0.5", True), ("0.0.0.0", True)])
def test_a_socket_beyond_loopback_that_guards_too_little_is_warned_of(
    host: str, warned: bool, settings: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        socket_settings(SocketConfig.model_validate({"host": host, **settings}))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert (warning in caplog.text) == warned
    assert SECRET not in caplog.text
