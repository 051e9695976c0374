"""The settings of a cluster: what is refused, what is read from files, and that no secret is shown."""

import asyncio
import contextlib
import logging
import socket
import ssl
from pathlib import Path

import pytest

from envelope.errors import InvalidConfig, UnavailableError
from envelope.types import NodeId
from jetstream.node.settings.node_config import NodeConfig, load_config
from jetstream.node.settings.peer_settings import PeerSettings, peer_settings
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.peers.dialling import Address
from metadata.node.storage.file_storage import FileStorage
from tests.support.memory_disk import MemoryDisk
from tests.support.metadata_members import FAST
from tests.support.nats_identities import TlsFiles, make_tls_files
from tests.support.node_cluster import free_ports
from tests.support.sockets import run

SECRET = "swordfish-and-chips"
N1 = NodeId("n1")
THREE = 'node_id = "n1"\n[peers]\nvoters = {n1 = "h1:9300", n2 = "h2", n3 = "[::1]:9302"}\nopen = true\n'
LOCAL = 'node_id = "n1"\n[peers]\nvoters = {n1 = "127.0.0.1:9300", n2 = "localhost:9301"}\n'


def config_of(tmp_path: Path, text: str) -> NodeConfig:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load_config(file)


def settings_of(tmp_path: Path, text: str) -> PeerSettings:
    return peer_settings(config_of(tmp_path, text), N1)


def test_without_the_section_a_node_is_alone() -> None:
    settings = peer_settings(NodeConfig(), N1)
    assert settings.voters == {}
    assert settings.address is None
    assert settings.listening() is None


def test_every_node_is_named_with_its_address(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, THREE)
    assert settings.voters == {
        "n1": Address("h1", 9300),
        "n2": Address("h2", 9294),
        "n3": Address("::1", 9302),
    }
    assert settings.address == settings.listen == Address("h1", 9300)
    assert (settings.identity.cluster, settings.identity.node_id) == ("jetstream", "n1")


def test_a_node_may_listen_elsewhere_than_it_is_dialled(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f'{THREE}host = "0.0.0.0"\nport = 7000')
    assert settings.listen == Address("0.0.0.0", 7000)
    assert settings.address == Address("h1", 9300)


@pytest.mark.parametrize(
    ("where", "listen", "address"),
    [
        ('advertise = "h9"', Address("h9", 9294), Address("h9", 9294)),
        ('advertise = "h9:1"\nhost = "0.0.0.0"\nport = 2', Address("0.0.0.0", 2), Address("h9", 1)),
        ('host = "h9"', Address("h9", 9294), Address("h9", 9294)),
        ('host = "h9"\nport = 2', Address("h9", 2), Address("h9", 2)),
    ],
)
def test_a_node_that_is_no_voter_says_where_it_is(
    tmp_path: Path, where: str, listen: Address, address: Address
) -> None:
    config = config_of(tmp_path, THREE.replace("n1", "n9", 1) + where)
    settings = peer_settings(config, NodeId("n9"))
    assert (settings.listen, settings.address) == (listen, address)


def test_the_environment_can_say_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_NODE_NODE_ID", "n1")
    monkeypatch.setenv("JETSTREAM_NODE_RACK", "a")
    monkeypatch.setenv("JETSTREAM_NODE_PEERS__VOTERS", '{"n1": "h1", "n2": "h2"}')
    monkeypatch.setenv("JETSTREAM_NODE_PEERS__TOKEN", SECRET)
    config = load_config()
    assert config.rack == "a"
    token = peer_settings(config, N1).identity.token
    assert token is not None
    assert token.get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (THREE.removeprefix('node_id = "n1"'), "a node with peers.voters needs a node_id"),
        (THREE.replace("n1", "n9", 1), "node n9 is none of peers.voters .n1, n2, n3.: peers.advertise"),
        (THREE.replace("n1", "n9", 1) + 'host = "0.0.0.0"', "peers.advertise must say"),
        (THREE.replace("n1", "n9", 1) + 'host = "h9"\nport = 0', "peers.advertise must say"),
        (THREE.replace("n1", "n9", 1) + 'advertise = "h2"', "advertise is the address of a voter"),
        (THREE + 'advertise = "h9"', "node n1 is a voter, dialled as peers.voters says"),
        ('node_id = "n1"\n[peers]\nvoters = {n1 = "h1"}', "peers.voters"),
        (f"{THREE}init = true", "choose init or voters"),
        ('node_id = "n1"\n[peers]', "node n1: peers.advertise must say"),
        ("[peers]\ninit = true", "node without a node_id: peers.advertise must say"),
        (THREE.replace("h2", "h1:9300"), "two voters have one address"),
        (THREE.replace("h2", "h2:0"), "not between 1 and 65535"),
        (THREE.replace("h2", "h2:65536"), "not between 1 and 65535"),
        (THREE.replace("h2", "h2:"), "an address is host:port"),
        (THREE.replace("h2", "::1:9294"), "an address is host:port"),
        (THREE.replace("h2", "a b"), "an address is host:port"),
        (THREE.replace("n2", '"n 2"'), "peers.voters"),
        (f'{THREE}token = ""', "peers.token"),
        (f'{THREE}token = "{SECRET}"\ntoken_file = "t"', "token or token_file"),
        (f'{THREE}tokens = "{SECRET}"', "peers.tokens"),
        (f'{THREE}[peers.tls]\ncertificate = "c"\nkey = "k"', "peers.tls.ca"),
        ('rack = ""', "rack"),
    ],
)
def test_settings_that_cannot_be_are_named_without_the_secret(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem) as caught:
        config_of(tmp_path, text)
    assert SECRET not in str(caught.value)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    nothing = tmp_path / "nothing"
    with pytest.raises(InvalidConfig, match=r"peers\.token_file"):
        settings_of(tmp_path, f'{THREE}token_file = "{nothing}"')
    tls = f'{THREE}[peers.tls]\ncertificate = "{files.server_certificate}"\n'
    with pytest.raises(InvalidConfig, match=r"peers\.tls: "):
        settings_of(tmp_path, f'{tls}key = "{nothing}"\nca = "{files.ca}"')
    with pytest.raises(InvalidConfig, match=r"peers\.tls\.ca: "):
        settings_of(tmp_path, f'{tls}key = "{files.server_key}"\nca = "{nothing}"')


def test_the_token_is_in_no_repr(tmp_path: Path) -> None:
    config = config_of(tmp_path, f'{THREE}token = "{SECRET}"')
    assert SECRET not in f"{config} {config!r} {config.model_dump()} {peer_settings(config, N1)!r}"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (LOCAL, None),
        (THREE, "whoever can connect"),
        (f'{THREE}token = "{SECRET}"', "travels unencrypted"),
    ],
)
def test_what_others_could_do_on_the_way_is_warned_of(
    tmp_path: Path, text: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        settings_of(tmp_path, text)
    assert len(caplog.records) == (warning is not None)
    assert (warning or "") in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        THREE.replace("open = true\n", ""),
        LOCAL.replace("localhost", "h2"),
        LOCAL + 'host = "0.0.0.0"\n',
    ],
)
def test_a_port_for_nodes_that_is_open_to_everybody_is_refused_unless_that_is_said(
    tmp_path: Path, text: str
) -> None:
    files = make_tls_files(tmp_path)
    tls = f'certificate = "{files.server_certificate}"\nkey = "{files.server_key}"\nca = "{files.ca}"'
    with pytest.raises(InvalidConfig, match=r"give all nodes a token or tls, or set peers\.open"):
        settings_of(tmp_path, text)
    for said in ("open = true", f'token = "{SECRET}"', f"[peers.tls]\n{tls}"):
        settings_of(tmp_path, f"{text}\n{said}")


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_of(tmp_path, f'{LOCAL}host = "127.0.0.1"\nport = {taken.getsockname()[1]}')
        with pytest.raises(UnavailableError, match="cannot listen for peers on 127"):
            settings.listening()


def tls_settings(files: TlsFiles, node_id: str, ports: list[int]) -> PeerSettings:
    config = NodeConfig.model_validate(
        {
            "node_id": node_id,
            "peers": {
                "voters": {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)},
                "tls": {"certificate": files.server_certificate, "key": files.server_key, "ca": files.ca},
            },
        }
    )
    return peer_settings(config, NodeId(node_id))


def test_nodes_with_certificates_of_one_authority_make_a_cluster_and_nobody_else_is_heard(
    tmp_path: Path,
) -> None:
    files, foreign = make_tls_files(tmp_path / "ours"), make_tls_files(tmp_path / "theirs")
    ports = free_ports(2)

    async def test() -> None:
        both = [tls_settings(files, name, ports) for name in ("n1", "n2")]
        async with asyncio.TaskGroup() as tasks:
            groups = [
                MetadataQuorum.voting(
                    settings.identity, settings.voters, FileStorage.open(MemoryDisk(), "metadata"), FAST
                )
                for settings in both
            ]
            running = [
                tasks.create_task(group.run(settings.listening()))
                for group, settings in zip(groups, both, strict=True)
            ]
            assert await groups[0].led() == await groups[1].led()
            stranger = tls_settings(foreign, "n2", ports).identity.client_tls
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", ports[0], ssl=stranger)
            nameless = ssl.create_default_context(cafile=str(files.ca))
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0], ssl=nameless)
            writer.write(b'{"protocol":1,"cluster":"jetstream","source":"n2","target":"n1"}\n')
            answer = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                answer = await reader.read()
            assert answer == b"", "a welcome to one without a certificate"
            writer.transport.abort()
            for task in running:
                task.cancel()

    run(test())
