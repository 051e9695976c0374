"""The settings of the HTTP port: what is refused, what is warned of, and which request is let in."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from envelope.errors import InvalidConfig
from jetstream.node.http.access import Credential, HttpSettings, http_settings
from jetstream.node.settings.node_config import TOKEN_CHARS_MAX, HttpConfig, NodeConfig, load_config
from tests.support.nats_identities import make_tls_files

SECRET = "swordfish-and-chips"
GUARDED = HttpSettings(SecretStr(SECRET))


def config_of(tmp_path: Path, text: str) -> NodeConfig:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load_config(file)


def token_of(config: HttpConfig | None) -> str | None:
    token = http_settings(config).token
    return None if token is None else token.get_secret_value()


def test_without_a_word_there_is_neither_token_nor_tls() -> None:
    for config in (None, HttpConfig()):
        assert http_settings(config) == HttpSettings(None, None)


def test_the_token_comes_from_the_file_the_environment_or_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_of(config_of(tmp_path, f'[http]\ntoken = "{SECRET}"').http) == SECRET
    own = tmp_path / "token"
    own.write_text(f"  {SECRET}\n")
    assert token_of(config_of(tmp_path, f'[http]\ntoken_file = "{own}"').http) == SECRET
    monkeypatch.setenv("JETSTREAM_NODE_HTTP__TOKEN", "from-the-environment")
    assert token_of(config_of(tmp_path, f'[http]\ntoken = "{SECRET}"').http) == "from-the-environment"
    flags = load_config(flags={"http": {"port": 0}}).http
    assert flags is not None
    assert flags.port == 0
    assert token_of(flags) == "from-the-environment", "as `jetstream up --http-port` has it"


def test_tls_is_a_section_of_its_own(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    section = f'[http.tls]\ncertificate = "{files.server_certificate}"\nkey = "{files.server_key}"'
    assert http_settings(config_of(tmp_path, section).http).tls is not None
    wrong = section.replace(str(files.server_key), str(files.client_key))
    with pytest.raises(InvalidConfig, match=r"http\.tls: .*server\.pem"):
        http_settings(config_of(tmp_path, wrong).http)
    with pytest.raises(InvalidConfig, match=r"http\.tls\.client_ca: .*absent\.pem"):
        http_settings(config_of(tmp_path, f'{section}\nclient_ca = "{tmp_path}/absent.pem"').http)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ('token = ""', "http.token"),
        (f'token = "{SECRET * TOKEN_CHARS_MAX}"', "http.token"),
        (f'token = "{SECRET}"\ntoken_file = "t"', "token or token_file"),
        (f'tokens = "{SECRET}"', "http.tokens"),
        (f'[http.tls]\ncertificate = "c"\npassword = "{SECRET}"', "http.tls.key"),
    ],
)
def test_settings_that_cannot_be_are_named_without_the_secret(
    tmp_path: Path, section: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem) as caught:
        config_of(tmp_path, f"[http]\n{section}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("token", [f"{SECRET} {SECRET}", f"{SECRET}\t", f"{SECRET}ä", f"{SECRET}\nX: y"])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(tmp_path: Path, token: str) -> None:
    with pytest.raises(InvalidConfig, match=r"http\.token: ") as caught:
        http_settings(HttpConfig(token=SecretStr(token)))
    assert SECRET not in str(caught.value)
    file = tmp_path / "token"
    file.write_text(f"{token}!")  # so that nothing of it is white space around it
    with pytest.raises(InvalidConfig, match=r"http\.token_file: ") as caught:
        http_settings(HttpConfig(token_file=file))
    assert SECRET not in str(caught.value)


def test_the_token_is_in_no_repr(tmp_path: Path) -> None:
    config = config_of(tmp_path, f'[http]\ntoken = "{SECRET}"')
    assert SECRET not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"
    assert SECRET not in repr(http_settings(config.http))


@pytest.mark.parametrize(
    ("settings", "warning"),
    [({"token": SECRET}, "travels unencrypted"), ({}, "whoever can connect can see the metrics")],
)
@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("10.0.0.5", True), ("0.0.0.0", True)])
def test_a_port_beyond_loopback_that_guards_too_little_is_warned_of(
    host: str, warned: bool, settings: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        http_settings(HttpConfig.model_validate({"host": host, **settings}))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert (warning in caplog.text) == warned
    assert SECRET not in caplog.text


@pytest.mark.parametrize("guard", ["token over TLS", "client certificates"])
def test_a_port_beyond_loopback_that_is_guarded_is_not_warned_of(
    tmp_path: Path, guard: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_tls_files(tmp_path)
    tls: dict[str, object] = {"certificate": files.server_certificate, "key": files.server_key}
    extra = {"token": SECRET} if guard == "token over TLS" else {}
    if not extra:
        tls["client_ca"] = files.ca
    with caplog.at_level(logging.WARNING):
        http_settings(HttpConfig.model_validate({"host": "10.0.0.5", "tls": tls, **extra}))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("shown", "judged"),
    [
        ([], Credential.MISSING),
        ([f"Bearer {SECRET}"], Credential.RIGHT),
        ([f"bearer  {SECRET} "], Credential.RIGHT),
        ([f"Bearer {SECRET}x"], Credential.WRONG),
        ([f"Bearer {SECRET[:-1]}"], Credential.WRONG),
        (["Bearer"], Credential.WRONG),
        (["Bearer "], Credential.WRONG),
        ([SECRET], Credential.WRONG),
        ([f"Basic {SECRET}"], Credential.WRONG),
        ([f"Bearer {SECRET}", f"Bearer {SECRET}"], Credential.WRONG),
        ([f"Bearer x, Bearer {SECRET}"], Credential.WRONG),
    ],
)
def test_a_request_is_judged_by_its_only_bearer_token(shown: list[str], judged: Credential) -> None:
    headers = [(b"host", b"x"), *((b"authorization", value.encode()) for value in shown)]
    assert GUARDED.judge(headers) is judged
    assert HttpSettings().judge(headers) is Credential.RIGHT, "where no token is wanted"


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_nothing_but_the_token_is_right(values: list[bytes]) -> None:
    judged = GUARDED.judge([(b"authorization", value) for value in values])
    assert judged is (Credential.WRONG if values else Credential.MISSING)
    assert SECRET not in judged.challenge
